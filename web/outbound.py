"""Calling web addresses that users gave us: the address that was checked is the one connected to.

Every connection resolves its host once, judges all the answers, and connects to one of them by number, so a name that
answers differently the second time (DNS rebinding) gains nothing. Redirects are not followed: each would have to be
judged afresh, which is the caller's to do.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from ipaddress import ip_address
from types import TracebackType
from typing import Annotated

import httpcore
import httpx
from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from web import addresses

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host and port to IP addresses in text form; raises OSError."""

LOOKUP_SECONDS = 3.0
"""Longest wait for a name's addresses, its turn included."""
THREADS_EACH = 8
"""Lookups that may be under way for each call. One that nobody waits for any more goes on until the system's resolver
gives up (10 to 20 s as it comes), while the call that began it has ended and others have followed."""


def _split(value: object) -> object:
    if isinstance(value, str):
        return frozenset(part.strip().lower() for part in value.split(",") if part.strip())
    return value


def _host_and_port(value: frozenset[str]) -> frozenset[str]:
    for entry in value:
        host, colon, port = entry.rpartition(":")
        if not host or not colon or not port.isdigit():
            raise ValueError(f"{entry!r} is not host:port")
    return value


AllowList = Annotated[frozenset[str], NoDecode, BeforeValidator(_split), AfterValidator(_host_and_port)]
"""For a setting: comma-separated host:port that may be called although private."""


def system_lookup(host: str, port: int) -> Sequence[str]:
    """What the system's resolver says. Blocks for as long as that takes, and cannot be called off."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class Resolver:
    """The system's resolver for `calls` calls at a time: a name without an answer delays only those who ask for it.

    Each lookup has a thread of its own, THREADS_EACH for each call at the most. The loop's own threads are too few: a
    handful of names whose servers are silent would hold them all, and with them everybody's calls. Those who ask for
    a name while it is looked up share the lookup.
    """

    def __init__(self, calls: int, lookup: Callable[[str, int], Sequence[str]] = system_lookup) -> None:
        self._lookup = lookup
        self._room = asyncio.Semaphore(calls * THREADS_EACH)
        self._running: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Raises OSError, also when it takes longer than LOOKUP_SECONDS."""
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                answer = await self._started(host, port)
                # Waited for, not awaited: whoever leaves does not take the others' lookup along.
                await asyncio.wait({answer})
        except TimeoutError:
            raise OSError(f"its name was not looked up within {LOOKUP_SECONDS:g} seconds.") from None
        return answer.result()

    async def _started(self, host: str, port: int) -> asyncio.Future[Sequence[str]]:
        name = (host, port)
        if name in self._running:
            return self._running[name]
        await self._room.acquire()
        if name in self._running:
            self._room.release()
            return self._running[name]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def ended(found: Sequence[str], error: Exception | None) -> None:
            self._room.release()
            del self._running[name]
            if error is None:
                answer.set_result(found)
            else:
                answer.set_exception(error)
                answer.exception()  # perhaps nobody waits for it any more, which is no fault

        def look_up() -> None:
            found: Sequence[str] = ()
            error: Exception | None = None
            try:
                found = self._lookup(host, port)
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(ended, found, error)

        try:
            # A daemon, so that a process that ends does not wait for it.
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
        except RuntimeError as error:
            self._room.release()
            raise OSError("its name cannot be looked up: there are too many threads.") from error
        self._running[name] = answer
        return answer


def client(
    allow: AbstractSet[str], resolve: Resolve, *, timeout_seconds: float, headers: Mapping[str, str]
) -> httpx.AsyncClient:
    """A client for addresses that passed `addresses.parse`; close it at the end. `allow` is as there.

    Calls raise addresses.Refused when the host leads to a private network, and what httpx, httpcore and the resolver
    (OSError) raise.
    """
    return httpx.AsyncClient(
        transport=Transport(CheckedNetwork(allow, resolve)),
        timeout=timeout_seconds,
        headers=dict(headers),
        follow_redirects=False,
        trust_env=False,
    )


def cause(error: BaseException) -> str:
    """Why a call did not come through, as the end of a sentence."""
    if isinstance(error, socket.gaierror):
        return "its name is unknown."
    if isinstance(error, httpcore.ProtocolError | httpx.ProtocolError):
        # Their own words hold what came: the banner of whatever listens there.
        return "it broke off, or its answer is not HTTP."
    return str(error) or "the connection broke."


class CheckedNetwork(httpcore.AsyncNetworkBackend):
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
                    raise addresses.Private(
                        "The address leads to a private network; only those on the public internet can be used."
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
        raise addresses.Refused("Only addresses on the network can be used.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Transport(httpx.AsyncBaseTransport):
    """httpx's requests over httpcore, with the network of our choice. No connection is kept for a second request."""

    def __init__(self, network: httpcore.AsyncNetworkBackend) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False),
            # As many as there are callers: one that waited for another's end would do so in its own time.
            max_connections=None,
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
