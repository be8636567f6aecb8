"""A small HTTP server on loopback that answers as a test says: bytes in, bytes out, so that it can also misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """What arrived: header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What goes back. `raw` replaces all of it; then the connection ends."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


Respond = Callable[[Request], Awaitable[Answer] | Answer]


@dataclass
class Origin:
    """A running server: its address, and all it was asked."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[Origin]:
    """Serve for the block. Connections are kept alive unless the answer says `Connection: close`."""
    origin = Origin()
    open_connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        origin.connections += 1
        try:
            while await _exchange(origin, respond, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            open_connections.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    origin.port = server.sockets[0].getsockname()[1]
    try:
        yield origin
    finally:
        server.close()
        for task in list(open_connections):
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


async def _exchange(
    origin: Origin, respond: Respond, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    request = Request(method, path, headers, body)
    origin.requests.append(request)
    given = respond(request)
    answer = given if isinstance(given, Answer) else await given
    if answer.raw is not None:
        writer.write(answer.raw)
        await writer.drain()
        return False
    lines = {"Content-Length": str(len(answer.body)), **answer.headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {answer.status} Status\r\n{text}\r\n".encode() + answer.body)
    await writer.drain()
    return lines.get("Connection") != "close"
