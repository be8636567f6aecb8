"""A model behind an OpenAI-compatible chat endpoint. A PDF travels as a file part, so the provider can reject it."""

import asyncio
import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from messaging.errors import MessagingError, NotRetryable, Outage, Retryable, Throttled, Unavailable
from messaging.retry import PROVIDER
from services.documents.providers import prompts
from services.documents.providers.reading import Document, Reading
from web import outbound

RETRY_AFTER_SECONDS = 1.0
"""The wait when a provider says "too many" and not how long."""
MAX_RETRY_AFTER_SECONDS = 600.0
_CONNECT_SECONDS = 5.0
_OFF_LOOP_BYTES = 256 * 1024
"""A body above this is put together in a thread: base64 and JSON of megabytes would hold up every other job."""
_DOCUMENT_AT_FAULT = frozenset({400, 404, 413, 415, 422})
_SHUT_TO_US = frozenset({401, 403})


class CompatibleReader:
    """Asks `<base_url>/chat/completions`. Connections are reused; close it at the end."""

    def __init__(
        self, base_url: str, model: str, key: str | None, timeout_seconds: float, connections: int = 20
    ) -> None:
        self._model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds)),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=False,
        )
        self._timeout = timeout_seconds

    async def extract(self, document: Document) -> Reading:
        return await self._ask(prompts.EXTRACT, document, None)

    async def check(self, document: Document, reading: Reading) -> Reading:
        return await self._ask(prompts.CHECK, document, prompts.show(reading.fields))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, instructions: str, document: Document, extracted: str | None) -> Reading:
        size = len(document.pdf or document.text or "")
        if size > _OFF_LOOP_BYTES:
            body = await asyncio.to_thread(_body, self._model, instructions, document, extracted)
        else:
            body = _body(self._model, instructions, document, extracted)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._client.post(self._url, content=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            # Nobody took the document: whatever is wrong, it is not the document.
            raise Outage(f"The model could not be reached: {error or type(error).__name__}", PROVIDER) from error
        except (TimeoutError, httpx.TimeoutException):
            raise Unavailable(f"The model did not answer within {self._timeout:g} seconds.", PROVIDER) from None
        except httpx.HTTPError as error:
            raise Unavailable(f"The model could not be asked: {outbound.cause(error)}", PROVIDER) from error
        if not answer.is_success:
            raise refusal(answer.status_code, answer.headers.get("retry-after"), answer.content)
        return Reading(prompts.parse(_content(answer.content)), self._model)


def refusal(status: int, retry_after: str | None, body: bytes) -> MessagingError:
    """What an answer other than 2xx means for the job."""
    message, code = _complaint(body)
    if status == 429:
        return Throttled("The model asks to wait: too many requests.", wait_seconds(retry_after))
    # A document is never behind a wrong address or an unknown model.
    if status in _SHUT_TO_US or (status == 404 and (message is None or code == "model_not_found")):
        return Outage(
            f"The model's endpoint refuses us ({status}): check its URL, name and key. {message or ''}".strip(),
            PROVIDER,
        )
    if status in _DOCUMENT_AT_FAULT:
        return NotRetryable(message or f"The model rejected the document ({status}).", "rejected_by_provider")
    if status >= 500:
        return Unavailable(f"The model's endpoint answered {status}. {message or ''}".strip(), PROVIDER)
    return Retryable(f"The model's endpoint answered {status}. {message or ''}".strip())


def wait_seconds(header: str | None) -> float:
    """A Retry-After header, seconds or an HTTP date, as seconds from now, within bounds."""
    seconds = RETRY_AFTER_SECONDS
    if header is not None:
        try:
            seconds = float(header)
        except ValueError:
            try:
                due = parsedate_to_datetime(header)
            except ValueError:
                pass
            else:
                seconds = (due.replace(tzinfo=due.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), MAX_RETRY_AFTER_SECONDS) if seconds == seconds else RETRY_AFTER_SECONDS


def _body(model: str, instructions: str, document: Document, extracted: str | None) -> bytes:
    if document.pdf is not None:
        shown: dict[str, Any] = {"type": "file", "file": {"filename": document.name, "file_data": document.data_url}}
    else:
        shown = {"type": "text", "text": document.text}
    parts = [shown] if extracted is None else [shown, {"type": "text", "text": f"Extracted fields:\n{extracted}"}]
    request = {
        "model": model,
        "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": parts}],
        "response_format": prompts.ANSWER_FORMAT,
    }
    return json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")


def _content(body: bytes) -> str:
    try:
        choice = json.loads(body)["choices"][0]
        message = choice["message"]
    except (ValueError, LookupError, TypeError):
        raise Retryable("The model's answer is not a chat completion.") from None
    if isinstance(message, dict) and (message.get("refusal") or choice.get("finish_reason") == "content_filter"):
        raise NotRetryable(
            f"The model refuses to read the document. {message.get('refusal') or ''}".strip(), "refused_by_provider"
        )
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, str):
        raise Retryable("The model's answer holds no text.")
    return content


def _complaint(body: bytes) -> tuple[str | None, str | None]:
    """The message and code of an error body, as OpenAI writes them; (None, None) for anything else."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        return None, None
    if isinstance(error, str):
        return error[:500], None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None, None
    return str(error["message"])[:500], str(error.get("code"))
