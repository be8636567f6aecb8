"""A body that comes too slowly is given up, whoever reads it, and one that comes steadily is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from messaging import process
from messaging.settings import ProcessSettings
from web.bodies import Pace, Paced
from web.faces import make_face
from web.problems import Problem
from web.tokens import Bearer, Identity

QUICK = Pace(idle_seconds=10.0, grace_seconds=0.5, bytes_per_second=1000.0)


class Said(BaseModel):
    text: str


def face(pace: Pace) -> FastAPI:
    made = make_face("Test", live={}, ready={}, pace=pace)

    @made.post("/stream")
    async def stream(request: Request) -> int:
        return sum([len(piece) async for piece in request.stream()])

    @made.post("/json")
    async def parsed(said: Said) -> int:
        return len(said.text)

    @made.post("/secured")
    async def secured(request: Request, who: Annotated[Identity, Depends(Bearer("k" * 32))]) -> int:
        return len(await request.body())

    @made.post("/number")
    async def number(request: Request, size: int) -> int:
        return size + len(await request.body())

    @made.get("/unread")
    async def unread() -> int:
        return 1

    @made.post("/broken")
    async def broken() -> int:
        raise ZeroDivisionError

    return made


@asynccontextmanager
async def served(pace: Pace) -> AsyncIterator[int]:
    settings = ProcessSettings.model_validate({"database_url": "postgresql://nobody@localhost/none"})
    async with process.serve(face(pace), settings) as port:
        yield port


async def send(port: int, path: str, pieces: list[bytes], wait: float, length: int | None = None) -> bytes:
    """The answer, and the end of the connection, to a body that is sent with pauses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = sum(map(len, pieces)) if length is None else length
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n"
        f"{'connection: close' if length is None else 'x-y: z'}\r\n\r\n".encode()
    )

    async def drip() -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(wait)

    dripping = asyncio.create_task(drip())
    try:
        async with asyncio.timeout(30):
            answer = await reader.read(65_536)
            # What is sent to a closed connection resets it, and the answer may be lost with it.
            dripping.cancel()
            return answer + await reader.read()
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.close()


@pytest.mark.parametrize("path", ["/stream", "/json"])
async def test_a_dripping_body_is_cut_and_the_client_told_what_to_do(path: str) -> None:
    async with served(QUICK) as port:
        answer = await send(port, path, [b"x"] * 1000, 0.1, length=1000)
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"urn:workbot:problem:too-slow" in answer
    assert b"1000 bytes a second" in answer
    assert b"faster line" in answer
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("path", ["/stream", "/json"])
async def test_a_body_that_stops_is_given_up(path: str) -> None:
    async with served(Pace(idle_seconds=0.2)) as port:
        answer = await send(port, path, [b"half"], 0.0, length=100)
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"Nothing came of the body for 0.2 seconds" in answer


async def test_a_body_that_keeps_its_pace_may_take_longer_than_the_grace() -> None:
    async with served(Pace(grace_seconds=2.0, bytes_per_second=1000.0)) as port:
        answer = await send(port, "/stream", [b"x" * 2000] * 12, 0.25)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert answer.endswith(b"24000")


async def test_a_body_that_is_parsed_is_bounded_and_one_that_is_streamed_is_its_routes_business() -> None:
    big = [b"x" * 65_536] * 16 + [b"x"]
    async with served(Pace()) as port:
        refused = await send(port, "/json", big, 0.0, length=10**9)
        taken = await send(port, "/stream", big, 0.0)
    assert refused.startswith(b"HTTP/1.1 413"), refused
    assert b"urn:workbot:problem:too-large" in refused
    assert taken.endswith(b"1048577"), taken


class Clock:
    """Moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_only_the_time_we_wait_for_a_body_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await taken(monkeypatch, ours=1e6, theirs=0.0) == 5
    with pytest.raises(Problem) as problem:
        await taken(monkeypatch, ours=0.0, theirs=1001.0)
    assert problem.value.kind == "too-slow"


async def taken(monkeypatch: pytest.MonkeyPatch, *, ours: float, theirs: float) -> int:
    """How many of 5 pieces a route gets that works `ours` seconds on each and waits `theirs` for it."""
    clock, got = Clock(), 0
    monkeypatch.setattr("web.bodies.monotonic", clock)

    async def receive() -> Message:
        await asyncio.sleep(0.01)
        clock.now += theirs
        return {"type": "http.request", "body": b"x", "more_body": got < 4}

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal got
        while got < 5:
            await receive()
            got += 1
            clock.now += ours

    async def send(message: Message) -> None:
        raise AssertionError(message)

    paced = Paced(route, Pace(idle_seconds=1000.0, grace_seconds=1000.0, bytes_per_second=1e9))
    await paced({"type": "http", "headers": [(b"content-length", b"5")]}, receive, send)
    return got


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /secured", 401),
        ("POST /nowhere", 404),
        ("PUT /secured", 405),
        ("POST /number?size=a", 422),
        ("GET /unread", 200),
        ("GET /docs", 200),
        ("POST /broken", 500),
    ],
)
@pytest.mark.parametrize("framing", ["content-length: 1000000", "transfer-encoding: chunked"])
async def test_a_body_nobody_reads_keeps_no_connection(
    request_line: str, status: int, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes at once, and the connection ends however the client goes on: that part has no pace."""
    monkeypatch.setattr("web.bodies.LINGER_SECONDS", 0.3)
    async with served(Pace()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{request_line} HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n".encode())
        answer = b""
        try:
            async with asyncio.timeout(30):
                answer = await reader.readuntil(b"\r\n\r\n")
                dripping = asyncio.create_task(drip(writer, b"1\r\nx\r\n" if "chunked" in framing else b"x"))
                # Reset instead of ended: the last byte came after the end. The answer was read before.
                with suppress(ConnectionError):
                    answer += await reader.read()
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            writer.close()
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer
    assert b"connection: close\r\n" in answer.lower()


async def drip(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await asyncio.sleep(0.05)


async def test_whoever_is_still_sending_is_told_why_it_was_refused() -> None:
    """20 MB with a token that has ended: closed at once, a client would meet a reset instead of its 401."""
    async with served(Pace()) as port:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /secured HTTP/1.1\r\nhost: a\r\ncontent-length: 20000000\r\n\r\n")
            async with asyncio.timeout(30):
                # As most clients do: nothing is read before all is sent.
                for _ in range(20):
                    writer.write(bytes(1_000_000))
                    await writer.drain()
                answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 401"), answer


async def test_a_connection_is_kept_when_the_whole_body_was_read_or_there_is_none() -> None:
    async with served(Pace()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(30):
            for head, body in (
                (b"POST /stream", b"content-length: 3\r\n\r\nabc"),
                (b"POST /json", b"content-length: 2\r\n\r\n{}"),
                (b"GET /unread", b"\r\n"),
                (b"POST /secured", b"content-length: 0\r\n\r\n"),
                (b"GET /nowhere", b"\r\n"),
            ):
                writer.write(head + b" HTTP/1.1\r\nhost: a\r\n" + body)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert b"connection:" not in answer.lower(), (head, answer)
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length"))
                await reader.readexactly(int(length.split(b":")[1]))
        writer.close()


async def test_an_answer_may_take_as_long_as_it_wants() -> None:
    made = make_face("Test", live={}, ready={}, pace=Pace(idle_seconds=0.1, grace_seconds=0.1))

    @made.get("/late")
    async def late(request: Request) -> bool:
        await request.body()
        await asyncio.sleep(0.5)
        return await request.is_disconnected()

    settings = ProcessSettings.model_validate({"database_url": "postgresql://nobody@localhost/none"})
    async with process.serve(made, settings) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /late HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(30):
            answer = await reader.read()
        writer.close()
    assert answer.endswith(b"false"), answer
