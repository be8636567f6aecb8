"""Fetching a page whose address a user sent: the address that was checked is the one connected to.

Every connection resolves its host once, judges all the answers, and connects to one of them by number, so a name that
answers differently the second time (DNS rebinding) gains nothing. Redirects are followed here, each judged afresh.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from types import TracebackType

import httpcore
import httpx

from messaging.errors import NotRetryable, Retryable
from services.documents import addresses, content

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAY_PASS = frozenset({408, 421, 425, 429})
"""Client errors that another try may not meet."""
_PAGE_TYPES = {content.HTML: content.HTML, "application/xhtml+xml": content.HTML, content.PDF: content.PDF}
_HEADERS = {
    "User-Agent": "WorkBot/1 (reads pages its users send)",
    "Accept": "text/html, application/xhtml+xml, text/plain, application/pdf",
}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host and port to IP addresses in text form; raises OSError."""


@dataclass(frozen=True, slots=True)
class Page:
    """What an address answered with. `encoding` is the one its headers declare."""

    url: str
    content_type: str
    content: bytes
    encoding: str | None


async def resolve(host: str, port: int) -> Sequence[str]:
    """The system's resolver."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class Pages:
    """Fetches pages. Close it at the end. Safe to use from many tasks."""

    def __init__(
        self,
        *,
        allow: AbstractSet[str] = frozenset(),
        max_bytes: int,
        timeout_seconds: float,
        resolve: Resolve = resolve,
    ) -> None:
        self._allow = allow
        self._max_bytes = max_bytes
        self._timeout = timeout_seconds
        self._client = httpx.AsyncClient(
            transport=_Transport(_CheckedNetwork(allow, resolve)),
            timeout=timeout_seconds,
            headers=_HEADERS,
            follow_redirects=False,
            trust_env=False,
        )

    async def fetch(self, url: str) -> Page:
        """The page at `url`.

        Raises NotRetryable for what will not change: an address that may not be fetched, a missing page, a type or
        size that cannot be read. Raises Retryable for what may pass: no answer, an error of the server, a time-out.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow(url)
        except addresses.Refused as refused:
            raise NotRetryable(str(refused), "address_refused") from None
        except (TimeoutError, httpx.TimeoutException, httpcore.TimeoutException):
            raise Retryable(f"The page did not answer within {self._timeout:g} seconds.") from None
        except (httpx.InvalidURL, httpx.DecodingError) as error:
            raise NotRetryable("The page's answer cannot be understood.", "page_unreadable") from error
        except (OSError, httpx.HTTPError, httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise Retryable(f"The page could not be reached: {_cause(error)}") from error

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


def _cause(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is unknown."
    return str(error) or "the connection broke."


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that were judged, by number."""

    def __init__(self, allow: AbstractSet[str], resolve: Resolve) -> None:
        self._allow = allow
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        answers = await self._resolve(host, port)
        if not answers:
            raise httpcore.ConnectError("its name has no address.")
        if not addresses.allowed(addresses.Target("", host.lower().rstrip("."), port), self._allow):
            for answer in answers:
                if not addresses.is_public(ip_address(answer.partition("%")[0])):
                    raise addresses.Refused(
                        "The address leads to a private network; only pages on the public internet can be fetched."
                    )
        failure: Exception | None = None
        for answer in answers:
            try:
                return await self._network.connect_tcp(answer, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise addresses.Refused("Pages are fetched over the network only.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Transport(httpx.AsyncBaseTransport):
    """httpx's requests over httpcore, with the network of our choice. No connection is kept for a second request."""

    def __init__(self, network: httpcore.AsyncNetworkBackend) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False),
            max_keepalive_connections=0,
            network_backend=network,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        answer = await self._pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._answer.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._answer.aclose()
