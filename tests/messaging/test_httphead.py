"""Heads of requests, sent by hand: what is too long or too slow costs its own connection, nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from messaging import process
from messaging.httphead import MAX_BYTES, LimitedHead
from messaging.settings import ProcessSettings

Message = MutableMapping[str, Any]


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answers with the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"%d bytes" % size
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with process.serve(app, settings()) as port:
        yield port


def settings() -> ProcessSettings:
    return ProcessSettings.model_validate({"database_url": "postgresql://nobody@localhost/none", "drain_seconds": 1})


async def ask(port: int, *pieces: bytes) -> bytes:
    """What comes back, until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(15):
            answer = await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()
    return answer


CLOSE = b"host: a\r\nconnection: close\r\n"


@pytest.mark.parametrize("size", [10, MAX_BYTES - 200])
async def test_a_head_within_the_limit_is_served(port: int, size: int) -> None:
    answer = await ask(port, b"GET / HTTP/1.1\r\n" + CLOSE + b"x: " + b"a" * size + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
async def test_a_head_over_the_limit_is_answered_431(port: int, end: bytes) -> None:
    answer = await ask(port, b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * MAX_BYTES + end)
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"head-too-large" in answer


async def test_many_small_headers_count_as_much_as_a_long_one(port: int) -> None:
    answer = await ask(port, b"GET / HTTP/1.1\r\n", *[b"a: b\r\n" * 2_000] * 6)
    assert answer.count(b"HTTP/1.1 431") == 1


async def test_bodies_and_further_requests_do_not_count(port: int) -> None:
    body = b"b" * (3 * MAX_BYTES)
    post = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    answer = await ask(port, post, post + post + b"GET / HTTP/1.1\r\n", CLOSE + b"\r\n")
    assert answer.count(b"HTTP/1.1 200") == 4
    assert answer.count(b"%d bytes" % len(body)) == 3


@pytest.mark.parametrize(
    "pieces", [[], [b"\r\n"] * 9, [b"GET / HTTP/1.1\r\n", *[b"a: b\r\n"] * 9], [b"GET / HT"]], ids=len
)
async def test_a_head_that_does_not_come_is_not_waited_for(
    port: int, pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedHead, "seconds", 0.5)
    began = time.monotonic()
    assert await ask(port, *pieces) == b""
    assert 0.4 < time.monotonic() - began < 10


async def test_a_slow_answer_is_not_a_slow_head(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitedHead, "seconds", 0.3)
    head = b"POST / HTTP/1.1\r\n" + CLOSE + b"content-length: 60\r\n\r\n"
    assert b"60 bytes" in await ask(port, head, *[b"x"] * 60)


async def test_a_server_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(_self: object, sockets: object = None) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(process._Server, "startup", failing)
    with pytest.raises(RuntimeError, match="did not start") as error:
        async with process.serve(app, settings()):
            raise AssertionError
    assert isinstance(error.value.__cause__, OSError)
