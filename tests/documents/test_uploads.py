"""A body that stops coming."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fastapi import Request

from messaging import process
from messaging.settings import ProcessSettings
from services.documents import uploads
from web.faces import make_face
from web.problems import Problem


async def pieces(*waits: float) -> AsyncIterator[bytes]:
    for number, wait in enumerate(waits):
        await asyncio.sleep(wait)
        yield b"%d" % number


async def test_a_body_that_keeps_coming_may_take_its_time() -> None:
    assert [piece async for piece in uploads.steady(pieces(*[0.05] * 8), 0.3)] == [b"%d" % n for n in range(8)]


async def test_a_body_that_stops_is_given_up() -> None:
    got = []

    async def read() -> None:
        async for piece in uploads.steady(pieces(0, 0, 60), 0.1):
            got.append(piece)

    with pytest.raises(Problem) as error:
        await read()
    assert got == [b"0", b"1"]
    assert (error.value.status, error.value.field) == (408, "body")
    assert error.value.headers["Connection"] == "close"


async def test_the_client_is_told_and_the_connection_ends() -> None:
    face = make_face("Test", live={}, ready={})

    @face.post("/")
    async def take(request: Request) -> int:
        return sum([len(piece) async for piece in uploads.steady(request.stream(), 0.2)])

    settings = ProcessSettings.model_validate({"database_url": "postgresql://nobody@localhost/none"})
    async with process.serve(face, settings) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf")
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"urn:workbot:problem:too-slow" in answer
