"""Fetching a page whose address a user sent, through `web.outbound`: what was checked is what is connected to.

Redirects are followed here, each judged afresh.
"""

import asyncio
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus

import httpcore
import httpx

from messaging.errors import NotRetryable, Retryable
from services.documents import content
from services.documents.submissions import ALLOWING
from web import addresses, outbound
from web.outbound import Resolve

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAY_PASS = frozenset({408, 421, 425, 429})
"""Client errors that another try may not meet."""
_PAGE_TYPES = {content.HTML: content.HTML, "application/xhtml+xml": content.HTML, content.PDF: content.PDF}
_HEADERS = {
    "User-Agent": "WorkBot/1 (reads pages its users send)",
    "Accept": "text/html, application/xhtml+xml, text/plain, application/pdf",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What an address answered with. `encoding` is the one its headers declare."""

    url: str
    content_type: str
    content: bytes
    encoding: str | None


class Pages:
    """Fetches pages. Close it at the end. Safe to use from many tasks."""

    def __init__(
        self,
        *,
        allow: AbstractSet[str] = frozenset(),
        max_bytes: int,
        timeout_seconds: float,
        resolve: Resolve,
    ) -> None:
        self._allow = allow
        self._max_bytes = max_bytes
        self._timeout = timeout_seconds
        self._client = outbound.client(allow, resolve, timeout_seconds=timeout_seconds, headers=_HEADERS)

    async def fetch(self, url: str) -> Page:
        """The page at `url`.

        Raises NotRetryable for what will not change: an address that may not be fetched, a missing page, a type or
        size that cannot be read. Raises Retryable for what may pass: no answer, an error of the server, a time-out.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow(url)
        except addresses.Refused as refused:
            raise NotRetryable(addresses.told(refused, ALLOWING), "address_refused") from None
        except (TimeoutError, httpx.TimeoutException, httpcore.TimeoutException):
            raise Retryable(f"The page did not answer within {self._timeout:g} seconds.") from None
        except (httpx.InvalidURL, httpx.DecodingError) as error:
            raise NotRetryable("The page's answer cannot be understood.", "page_unreadable") from error
        except (OSError, httpx.HTTPError, httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise Retryable(f"The page could not be reached: {outbound.cause(error)}") from error

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def _follow(self, url: str) -> Page:
        for _ in range(MAX_REDIRECTS + 1):
            addresses.parse(url, self._allow)
            async with self._client.stream("GET", url) as response:
                location = response.headers.get("location")
                if response.status_code not in _REDIRECTS or location is None:
                    return await self._read(response)
                url = str(response.url.join(location))
        raise NotRetryable(f"The page redirects more than {MAX_REDIRECTS} times.", "page_unreadable")

    async def _read(self, response: httpx.Response) -> Page:
        status = response.status_code
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS:
            raise Retryable(f"The page's server answered {status}.")
        if status != HTTPStatus.OK:
            raise NotRetryable(f"There is no page to read: its server answered {status}.", "page_missing")
        declared = response.headers.get("content-type", content.HTML).partition(";")[0].strip().lower()
        kind = _PAGE_TYPES.get(declared, content.TEXT if declared.startswith("text/") else None)
        if kind is None:
            raise NotRetryable(f"The address leads to {declared[:80]}, which cannot be read.", "unsupported_type")
        received = bytearray()
        async for piece in response.aiter_bytes():
            received += piece
            if len(received) > self._max_bytes:
                raise NotRetryable(f"The page is larger than {self._max_bytes} bytes.", "too_large")
        return Page(str(response.url), kind, bytes(received), response.charset_encoding)
