"""A scripted service behind the gateway: says what it is told to, and remembers what it heard."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter, "Heard"], Awaitable[None]]


@dataclass
class Heard:
    """One call as it came over the wire, header names in lower case."""

    line: str
    headers: list[tuple[str, str]]
    body_bytes: int = 0
    broken_off: bool = False

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass
class Upstream:
    """Answers every call with `answer`."""

    answer: Answer
    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *fields = head.decode("latin-1").strip().split("\r\n")
                pairs = [field.partition(": ")[::2] for field in fields]
                call = Heard(line, [(name.lower(), value) for name, value in pairs])
                self.heard.append(call)
                await self.answer(reader, writer, call)
        writer.close()


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[Upstream]:
    """Run one on a thread of its own."""
    upstream = Upstream(answer)
    loop = asyncio.new_event_loop()

    async def open_() -> asyncio.Server:
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    server = loop.run_until_complete(open_())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield upstream
    finally:

        async def end() -> None:
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def body(reader: asyncio.StreamReader, call: Heard) -> AsyncIterator[bytes]:
    """The call's body, as Content-Length frames it."""
    left = int((call.values("content-length") or ["0"])[0])
    while left:
        piece = await reader.read(min(left, 65536))
        if not piece:
            call.broken_off = True
            return
        left -= len(piece)
        call.body_bytes += len(piece)
        yield piece


def says(status: str, *headers: str, content: bytes = b"") -> Answer:
    """Read the body, then answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        async for _ in body(reader, call):
            pass
        lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(content)}", "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        await writer.drain()

    return answer
