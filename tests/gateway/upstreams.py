"""A scripted service behind the gateway: says what it is told to, and remembers what it heard."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.fixtures.listening import listening

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
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                return  # the body of a call that was answered without reading it
            line, *fields = head.decode("latin-1").strip().split("\r\n")
            pairs = [field.partition(": ")[::2] for field in fields]
            call = Heard(line, [(name.lower(), value) for name, value in pairs])
            self.heard.append(call)
            await self.answer(reader, writer, call)


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[Upstream]:
    """Run one on a thread of its own."""
    upstream = Upstream(answer)
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        done = asyncio.Event()
        async with listening(upstream.serve) as port:
            upstream.url = f"http://127.0.0.1:{port}"
            ready.set_result((asyncio.get_running_loop(), done))
            await done.wait()

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(asyncio.run, serve())
        loop, done = ready.result(10)
        try:
            yield upstream
        finally:
            loop.call_soon_threadsafe(done.set)
            served.result(10)


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
