"""A request's body, as fast as is worth waiting for, and no larger than is worth keeping.

A client that drips its body must not hold a connection for ever, and one that sends without end must not fill our
memory: the framework reads a body that it parses as a whole, and before it asks who sent it.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from time import monotonic

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from messaging.settings import ProcessSettings
from web.problems import Problem

MAX_PARSED_BYTES = 2**20
"""The largest body of a route that takes it parsed. Routes that read a stream have limits of their own."""

LINGER_SECONDS = 2.0
"""How long a client that has its answer and is still sending is listened to before its connection is closed."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a body may come. Only the time in which we wait for it counts.

    idle_seconds       longest wait for the next piece
    grace_seconds      how long it may take whatever its size; beyond that
    bytes_per_second   what it must bring on average
    """

    idle_seconds: float = 30.0
    grace_seconds: float = 60.0
    bytes_per_second: float = 4096.0


def pace(settings: ProcessSettings) -> Pace:
    """The pace a process is set to."""
    return Pace(settings.body_idle_seconds, settings.body_grace_seconds, settings.body_bytes_per_second)


class Paced:
    """ASGI middleware: reading a body raises a problem, where it is read, when it comes too slowly (408) or is too
    large for a route that takes it parsed (413).

    An answer to a request whose body was not read to its end (401, 404, 413) ends the connection: nobody would hold
    the rest of it to a pace.
    """

    def __init__(self, app: ASGIApp, pace: Pace) -> None:
        self._app = app
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            body = _Body(scope, receive, self._pace)
            receive, send = body.next, _Answer(body, send).next
        await self._app(scope, receive, send)


class _Body:
    def __init__(self, scope: Scope, receive: Receive, pace: Pace) -> None:
        self._scope = scope
        self._receive = receive
        self._pace = pace
        self._received = 0
        self._waited = 0.0
        self.ended = not any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
            for name, value in scope["headers"]
        )

    async def next(self) -> Message:
        if self.ended:
            # What comes now is that the client leaves, and that may take as long as the answer.
            return await self._receive()
        left = self._pace.grace_seconds + self._received / self._pace.bytes_per_second - self._waited
        began = monotonic()
        try:
            async with asyncio.timeout(min(left, self._pace.idle_seconds)):
                message = await self._receive()
        except TimeoutError:
            raise self._too_slow(idle=left > self._pace.idle_seconds) from None
        self._waited += monotonic() - began
        self._received += len(message.get("body", b""))
        if self._received > MAX_PARSED_BYTES and self._parsed():
            detail = f"At most {MAX_PARSED_BYTES // 1024} KiB are taken here; send less at a time."
            raise Problem(413, "too-large", detail, field="body")
        self.ended = not message.get("more_body", False)
        return message

    async def throw_away(self, seconds: float) -> None:
        """What comes of the rest within that time, or until the client leaves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (await self._receive()).get("more_body", False):
                    pass

    def _parsed(self) -> bool:
        # Known by now: a body is read after its route was found.
        return getattr(self._scope.get("route"), "body_field", None) is not None

    def _too_slow(self, *, idle: bool) -> Problem:
        if idle:
            detail = (
                f"Nothing came of the body for {self._pace.idle_seconds:g} seconds; send it again, without a pause."
            )
        else:
            detail = (
                f"The body came too slowly: beyond {self._pace.grace_seconds:g} seconds it must bring"
                f" {self._pace.bytes_per_second:g} bytes a second. Send it over a faster line, or a smaller one."
            )
        return Problem(HTTPStatus.REQUEST_TIMEOUT, "too-slow", detail, field="body")


class _Answer:
    def __init__(self, body: _Body, send: Send) -> None:
        self._body = body
        self._send = send
        self._closes = False
        self._framed = False

    async def next(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._body.ended:
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            headers["connection"] = "close"
            self._closes, self._framed = True, "content-length" in headers
            message = {**message, "headers": headers.raw}
        elif self._closes and self._framed and not message.get("more_body", False):
            # All of it has gone out. Closed at once, a client that is still sending might be told of that instead.
            await self._send({**message, "more_body": True})
            await self._body.throw_away(LINGER_SECONDS)
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)
