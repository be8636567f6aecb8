"""The head of a request, within limits of size and time: the HTTP server itself waits for any head, of any length."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_BYTES = 64 * 1024
"""What a request line and its headers may take. Over it, the answer is 431 and the end of the connection."""
SECONDS = 20.0
"""How long a head may take to arrive. After it, the connection is closed."""

_TOO_LARGE = (
    b'{"type":"urn:workbot:problem:head-too-large","title":"Request Header Fields Too Large","status":431,'
    b'"detail":"The headers are too long; send at most %d KiB."}' % (MAX_BYTES // 1024)
)
_ANSWER = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_TOO_LARGE), _TOO_LARGE)
)


class LimitedHead(HttpToolsProtocol):
    """One connection. Between two requests the server's own keep-alive limit holds."""

    seconds = SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaiting = True
        self._refused = False
        self._received = 0
        self._parsed = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._awaiting:
            self._received += len(data)
            self._start_timer()
        super().data_received(data)
        if self._awaiting and self._received > MAX_BYTES:
            self._refuse()

    def on_url(self, url: bytes) -> None:
        self._parsed += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._parsed += len(name) + len(value)
        if not self._awaiting:
            # A trailer, after the body: nobody reads it, so it is not kept either.
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._awaiting = False
        self._stop_timer()
        too_large = self._parsed > MAX_BYTES
        self._received = self._parsed = 0
        if too_large:
            self._refuse()
        if not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaiting = True
        self._received = self._parsed = 0
        if not self._refused:
            super().on_message_complete()

    def _refuse(self) -> None:
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_ANSWER)
        self.transport.close()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()
