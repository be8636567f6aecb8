"""A body that comes too slowly is given up, whoever reads it, and one that comes steadily is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel

from messaging import process
from messaging.settings import ProcessSettings
from web.bodies import Pace
from web.faces import make_face

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
    async with served(QUICK) as port:
        answer = await send(port, "/stream", [b"x" * 2000] * 12, 0.1)
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


async def test_the_time_we_take_ourselves_does_not_count() -> None:
    made = make_face("Test", live={}, ready={}, pace=Pace(grace_seconds=0.3, bytes_per_second=1e9))

    @made.post("/slow")
    async def slow(request: Request) -> int:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            await asyncio.sleep(0.2)
        return size

    settings = ProcessSettings.model_validate({"database_url": "postgresql://nobody@localhost/none"})
    async with process.serve(made, settings) as port:
        answer = await send(port, "/slow", [b"x" * 200_000] * 5, 0.0)
    assert answer.endswith(b"1000000"), answer


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
