"""Another service's API under our origin: streamed both ways, with bounded memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpcore
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from messaging.telemetry import current_traceparent
from services.gateway.upstream import Upstream
from web import sse
from web.problems import BUSY_RETRY_SECONDS, Problem, not_found, only_reads
from web.tokens import Bearer

log = structlog.get_logger(__name__)

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Set anew: the other service's name; that it is awaited is our server's business; it would believe us who calls.
_NOT_SENT = _HOP_BY_HOP | {
    b"host",
    b"expect",
    b"traceparent",
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
}
_NOT_RETURNED = _HOP_BY_HOP | {b"date", b"server"}
_VIA = (b"via", b"1.1 workbot-gateway")


class Forwarding:
    """An ASGI endpoint. Asks for a token, passes the call on with it, and the answer back, whatever it is.

    Problems of its own: 401; 404 for a path with dots to climb; 503 while the service is away or when it breaks off;
    504 when it is silent for `silence_seconds`. How slowly a client may send is the face's business (`web.bodies`).
    A client that leaves takes the call with it, and so does one that leaves its answer unread for `silence_seconds`.
    """

    def __init__(self, name: str, upstream: Upstream, bearer: Bearer, silence_seconds: float) -> None:
        self._name = name
        self._upstream = upstream
        self._bearer = bearer
        self._silence = silence_seconds
        self._streams: set[asyncio.Timeout] = set()
        self._closed = False

    def close(self) -> None:
        """End the event streams that pass, and those that still come, where they are.

        They have no end of their own that stopping could wait for, and their clients come back by themselves. Every
        other answer is left to come to its end.
        """
        self._closed = True
        for stream in self._streams:
            stream.reschedule(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._bearer(Request(scope))
        if not {".", ".."}.isdisjoint(scope["path"].split("/")):
            raise not_found("page", "path")
        body = _Body(receive)
        forwarding = asyncio.create_task(self._forward(scope, body, send))
        leaving = asyncio.create_task(body.left())
        try:
            await asyncio.wait((forwarding, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = not forwarding.done()
            forwarding.cancel()
            leaving.cancel()
            await asyncio.gather(forwarding, leaving, return_exceptions=True)
        if left:
            log.info("client.left", service=self._name)
            return
        forwarding.result()

    async def _forward(self, scope: Scope, body: "_Body", send: Send) -> None:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = request_headers(scope["headers"], self._upstream.authority, current_traceparent())
        try:
            answer = await self._upstream.send(scope["method"], target, headers, body.pieces())
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise self._problem(error, reads=only_reads(scope["method"])) from error
        try:
            try:
                await self._pass_back(answer, send)
            finally:
                await answer.aclose()
            await self._give(send, {"type": "http.response.body", "body": b""})
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            # The status is sent: breaking off is the only way left to say it.
            log.warning("answer.broke_off", service=self._name, error=repr(error))
        except _Stalled:
            log.info("client.stalled", service=self._name)

    async def _pass_back(self, answer: httpcore.Response, send: Send) -> None:
        """All but the end of it. Raises _Stalled, and what httpcore raises."""
        returned = answer_headers(answer.headers, self._upstream.origin.encode())
        await self._give(send, {"type": "http.response.start", "status": answer.status, "headers": returned})
        async with self._until_closed(endless=_is_event_stream(returned)):
            async for piece in answer.aiter_stream():
                await self._give(send, {"type": "http.response.body", "body": piece, "more_body": True})

    async def _give(self, send: Send, message: Message) -> None:
        try:
            async with asyncio.timeout(self._silence):
                await send(message)
        except TimeoutError:
            raise _Stalled from None

    @asynccontextmanager
    async def _until_closed(self, *, endless: bool) -> AsyncIterator[None]:
        """Left early, in order, when we close: if what passes is without end."""
        if not endless:
            yield
            return
        try:
            async with asyncio.timeout(0 if self._closed else None) as stream:
                self._streams.add(stream)
                try:
                    yield
                finally:
                    self._streams.discard(stream)
        except TimeoutError:
            if not stream.expired():
                raise

    def _problem(self, error: Exception, *, reads: bool) -> Problem:
        log.warning("forwarding.failed", service=self._name, error=repr(error))
        retry = {"Retry-After": str(BUSY_RETRY_SECONDS)}
        match error:
            case httpcore.LocalProtocolError():
                return Problem(
                    HTTPStatus.BAD_REQUEST, "bad-request", "The request cannot be passed on as it was sent."
                )
            case httpcore.ConnectError() | httpcore.ConnectTimeout() | httpcore.PoolTimeout():
                remedy = "Ask again shortly." if reads else "Nothing was kept; send it again shortly."
                detail = f"The {self._name} service is away. {remedy}"
                return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "service-away", detail, headers=retry)
            case httpcore.TimeoutException():
                detail = f"The {self._name} service has not answered within {self._silence:g} s."
                return Problem(HTTPStatus.GATEWAY_TIMEOUT, "service-silent", detail)
        remedy = (
            "Ask again shortly."
            if reads
            else "Ask for what you sent, or send it again with the same Idempotency-Key."
        )
        detail = f"The {self._name} service broke off before it answered. {remedy}"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "service-broke-off", detail, headers=retry)


class _Stalled(Exception):
    """The client does not take what is sent to it."""


class _Body:
    """The client's body, and whether the client is still there."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._complete = asyncio.Event()

    async def pieces(self) -> AsyncIterator[bytes]:
        """As it arrives. Raises ClientDisconnect, and what reading it raises."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            if not more:
                self._complete.set()
            if piece := message.get("body"):
                yield piece

    async def left(self) -> None:
        """Returns when the client has gone, after its body was read; before that `pieces` notices."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def request_headers(sent: Headers, authority: bytes, traceparent: str | None) -> Headers:
    """Pure: the headers a service gets of those a client sent."""
    named = _named_by_connection(sent)
    headers = [(b"host", authority)]
    headers += [(name, value) for name, value in sent if name not in _NOT_SENT and name not in named]
    if any(name == b"transfer-encoding" for name, _ in sent):
        # The only coding our server lets through; the next hop frames it anew.
        headers.append((b"transfer-encoding", b"chunked"))
    if traceparent is not None:
        headers.append((b"traceparent", traceparent.encode()))
    headers.append(_VIA)
    return headers


def answer_headers(sent: Headers, origin: bytes) -> Headers:
    """Pure: the headers a client gets of those a service sent. An address under `origin` becomes relative."""
    lower = [(name.lower(), value) for name, value in sent]
    named = _named_by_connection(lower)
    return [
        (name, _relative(value, origin) if name == b"location" else value)
        for name, value in lower
        if name not in _NOT_RETURNED and name not in named
    ]


def _is_event_stream(headers: Headers) -> bool:
    kinds = [value for name, value in headers if name == b"content-type"]
    return any(kind.partition(b";")[0].strip().lower() == sse.MEDIA_TYPE.encode() for kind in kinds)


def _named_by_connection(headers: Headers) -> set[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return {part.strip().lower() for value in values for part in value.split(b",")}


def _relative(location: bytes, origin: bytes) -> bytes:
    rest = location.removeprefix(origin)
    return (rest or b"/") if rest != location and rest[:1] in (b"", b"/", b"?", b"#") else location
