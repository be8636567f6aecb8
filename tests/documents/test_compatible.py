"""The OpenAI-compatible client against a real HTTP server: what it sends, and what each answer means for the job."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from messaging.errors import MessagingError, NotRetryable, Outage, Retryable, Throttled, Unavailable
from services.documents.fields import Field
from services.documents.providers import CompatibleReader, Document, Reading
from services.documents.providers.compatible import MAX_RETRY_AFTER_SECONDS, RETRY_AFTER_SECONDS, wait_seconds
from tests.fixtures.origin import Answer, Origin, Request, serving

PDF = Document("invoice.pdf", pdf=b"%PDF-1.7 content")
TEXT = Document("note.txt", text="Supplier: Grüße GmbH")
FOUND = {"fields": [{"name": "supplier", "value": "Acme", "confidence": 0.9}]}


def completion(content: object, **message: object) -> Answer:
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    return Answer(body=json.dumps({"choices": [choice]}).encode())


def failure(status: int, message: str | None = None, code: str = "invalid_request_error", **headers: str) -> Answer:
    body = b"<html>" if message is None else json.dumps({"error": {"message": message, "code": code}}).encode()
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


@asynccontextmanager
async def model(
    respond: Callable[[Request], Any], seconds: float = 5.0
) -> AsyncIterator[tuple[CompatibleReader, Origin]]:
    async with serving(respond) as origin:
        reader = CompatibleReader(f"{origin.url}/v1/", "small", "key-1", seconds)
        try:
            yield reader, origin
        finally:
            await reader.aclose()


async def fails(answer: Answer, document: Document = TEXT) -> MessagingError:
    async with model(lambda _: answer) as (reader, _):
        with pytest.raises(MessagingError) as error:
            await reader.extract(document)
    return error.value


async def test_both_calls_carry_the_document_and_share_a_connection() -> None:
    async with model(lambda _: completion(FOUND)) as (reader, origin):
        reading = await reader.extract(PDF)
        checked = await reader.check(PDF, reading)
    assert reading == checked == Reading((Field("supplier", "Acme", 0.9),), "small")
    assert origin.connections == 1
    extract, check = (json.loads(request.body) for request in origin.requests)
    for request, body in zip(origin.requests, (extract, check), strict=True):
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.headers["authorization"] == "Bearer key-1"
        assert body["model"] == "small"
        assert body["response_format"]["type"] == "json_schema"
        file = body["messages"][1]["content"][0]
        assert (file["type"], file["file"]["filename"]) == ("file", "invoice.pdf")
        kind, data = file["file"]["file_data"].split(",")
        assert (kind, base64.b64decode(data)) == ("data:application/pdf;base64", PDF.pdf)
    assert len(extract["messages"][1]["content"]) == 1
    assert '"Acme"' in check["messages"][1]["content"][1]["text"]


async def test_a_text_travels_as_text() -> None:
    async with model(lambda _: completion(FOUND)) as (reader, origin):
        await reader.extract(TEXT)
    assert json.loads(origin.requests[0].body)["messages"][1]["content"] == [{"type": "text", "text": TEXT.text}]


async def test_a_large_file_arrives_whole_and_the_loop_goes_on() -> None:
    large = Document("large.pdf", pdf=b"%PDF-" + bytes(range(256)) * 40_000)
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            longest = max(longest, loop.time() - before)

    async with model(lambda _: completion(FOUND)) as (reader, origin):
        watcher = asyncio.create_task(watch())
        await reader.extract(large)
        watcher.cancel()
    data = json.loads(origin.requests[0].body)["messages"][1]["content"][0]["file"]["file_data"]
    assert base64.b64decode(data.partition(",")[2]) == large.pdf
    assert longest < 1.0


@pytest.mark.parametrize("status", [400, 413, 415, 422, 404])
async def test_a_document_the_provider_rejects_is_never_tried_again(status: int) -> None:
    error = await fails(failure(status, "The PDF has no page tree."), PDF)
    assert isinstance(error, NotRetryable)
    assert (str(error), error.reason) == ("The PDF has no page tree.", "rejected_by_provider")


async def test_a_rejection_without_words_still_says_something() -> None:
    error = await fails(failure(400), PDF)
    assert isinstance(error, NotRetryable)
    assert "400" in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        failure(401, "Incorrect API key."),
        failure(403, "Not your project."),
        failure(404),
        failure(404, "The model does not exist.", "model_not_found"),
    ],
)
async def test_a_fault_of_our_settings_costs_no_document(answer: Answer) -> None:
    error = await fails(answer)
    assert isinstance(error, Outage)
    assert error.resource == "provider"


@pytest.mark.parametrize("status", [408, 409])
async def test_trouble_with_one_request_may_pass(status: int) -> None:
    assert type(await fails(failure(status, "try again"))) is Retryable


@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_trouble_at_the_provider_may_pass_and_counts_for_its_breaker(status: int) -> None:
    error = await fails(failure(status, "overloaded"))
    assert isinstance(error, Unavailable)
    assert error.resource == "provider"


async def test_too_many_requests_is_a_wait_for_everybody() -> None:
    error = await fails(failure(429, "slow down", Retry_After="7"))
    assert isinstance(error, Throttled)
    assert error.retry_after == 7.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, RETRY_AFTER_SECONDS),
        ("0", 0.0),
        ("1.5", 1.5),
        ("-5", 0.0),
        ("86400", MAX_RETRY_AFTER_SECONDS),
        ("soon", RETRY_AFTER_SECONDS),
        ("nan", RETRY_AFTER_SECONDS),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after(header: str | None, seconds: float) -> None:
    assert wait_seconds(header) == seconds


def test_retry_after_as_a_date() -> None:
    due = datetime.now(UTC) + timedelta(seconds=30)
    assert 27 < wait_seconds(format_datetime(due, usegmt=True)) <= 30


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>"),
        Answer(body=b"[]"),
        Answer(body=b'{"choices": []}'),
        Answer(body=b'{"choices": [{"message": null}]}'),
        completion(None),
        completion("here you are: {}"),
        completion({}),
        completion({"fields": {}}),
        completion({"fields": [{"name": "total", "value": 12, "confidence": 1}]}),
        completion({"fields": [{"name": "total", "value": "12", "confidence": 1.2}]}),
        completion({"fields": [{"name": "total", "value": "12", "confidence": "high"}]}),
        completion({"fields": [{"name": "total", "value": "12"}]}),
        completion({"fields": [{"name": "", "value": "12", "confidence": 1}]}),
        completion({"fields": [{"name": "n", "value": "x" * 5000, "confidence": 1}]}),
        completion({"fields": [{"name": f"n{i}", "value": "x", "confidence": 1} for i in range(500)]}),
        completion('{"fields": [{"name": "a", "value": "\\ud800", "confidence": 1}]}'),
        Answer(raw=b""),
        Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"),
    ],
)
async def test_an_answer_nobody_can_use_is_asked_for_again(answer: Answer) -> None:
    assert isinstance(await fails(answer), Retryable)


@pytest.mark.parametrize("answer", [completion(None, refusal="I cannot read this."), completion("", refusal="No.")])
async def test_a_refusal_of_the_model_is_for_good(answer: Answer) -> None:
    error = await fails(answer)
    assert isinstance(error, NotRetryable)
    assert error.reason == "refused_by_provider"


async def test_a_silent_model_is_given_up() -> None:
    async def silent(_: Request) -> Answer:
        await asyncio.sleep(30)
        return Answer()

    async with model(silent, seconds=0.3) as (reader, _):
        with pytest.raises(Unavailable, match=r"0\.3 seconds"):
            await reader.extract(TEXT)


async def test_what_is_no_answer_is_not_passed_on() -> None:
    error = await fails(Answer(raw=b"a banner of something else\r\n\r\n"))
    assert isinstance(error, Unavailable)
    assert str(error) == "The model could not be asked: it broke off, or its answer is not HTTP."


async def test_a_model_that_is_away_costs_no_document(unused_tcp_port: int) -> None:
    reader = CompatibleReader(f"http://127.0.0.1:{unused_tcp_port}/v1", "small", None, 1.0)
    with pytest.raises(Outage, match="could not be reached") as away:
        await reader.extract(TEXT)
    assert away.value.resource == "provider"
    await reader.aclose()


async def test_what_a_model_says_twice_counts_once_and_holds_no_nul() -> None:
    said = {"fields": [{"name": "a", "value": "1", "confidence": 0}, {"name": "a", "value": "2\0", "confidence": 1}]}
    async with model(lambda _: completion(said)) as (reader, _):
        assert (await reader.extract(TEXT)).fields == (Field("a", "2", 1.0),)


async def test_no_key_is_sent_when_there_is_none() -> None:
    async with serving(lambda _: completion(FOUND)) as origin:
        reader = CompatibleReader(origin.url, "small", None, 5.0)
        await reader.extract(TEXT)
        await reader.aclose()
    assert "authorization" not in origin.requests[0].headers
