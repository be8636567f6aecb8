"""Server-sent events: a response that goes on, to a client that may leave, stall, or stay for hours."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from web.problems import bad_input

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
"""How often a silent stream says that it is alive: below what proxies take for dead."""

HEARTBEAT = b": alive\n\n"
SEND_SECONDS = 10.0
"""How long a client may leave what was sent unread before it is dropped."""

log = structlog.get_logger(__name__)


def event(data: Any, *, name: str, number: int) -> bytes:
    """Pure: one event, its data as JSON on one line."""
    said = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"id: {number}\nevent: {name}\ndata: {said}\n\n".encode()


def hello(number: int, retry_seconds: float) -> bytes:
    """Pure: what a stream begins with: the cursor it stands at, and how soon to come back after a break."""
    return f": hello\nretry: {int(retry_seconds * 1000)}\nid: {number}\n\n".encode()


def cursor(request: Request, after: int | None) -> int | None:
    """Where the client has come to: its Last-Event-ID, which a browser sends by itself, or else `after`.

    Raises a 422 problem for an id that is none of ours.
    """
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return after
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise bad_input("Last-Event-ID", "bad-cursor", "Send the last id that the stream gave you, or none.")
    return int(given)


class EventStream(Response):
    """Sends what `events` yields until that ends or the client leaves; then calls `finish`, in any case.

    A client that takes nothing for SEND_SECONDS is dropped: nothing is kept for it here, it comes back with its
    cursor. `events` is cancelled once, where it waits, and closed, so what it holds is let go of in order.
    """

    media_type = MEDIA_TYPE

    def __init__(self, events: AsyncGenerator[bytes, None], finish: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(status_code=HTTPStatus.OK, headers=headers)
        del self.headers["content-length"]
        self._events = events
        self._finish = finish

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(self._send(send)), asyncio.ensure_future(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._finish()
        for error in ended:
            if isinstance(error, TimeoutError):
                log.info("stream.client_dropped", path=scope.get("path"))
            elif isinstance(error, Exception):
                raise error

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for part in events:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
