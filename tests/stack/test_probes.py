"""Asking over HTTP."""

import asyncio

import pytest

from stack.child import NotReady
from stack.probes import expect_ok
from tests.fixtures.listening import listening


async def ask(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /readyz HTTP/1.1\r\n")
        writer.write(answer)

    async with listening(serve) as port:
        await expect_ok(f"http://127.0.0.1:{port}/readyz")


async def test_a_200_is_ready() -> None:
    await ask(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 503 Unavailable\r\n\r\nno database", "/readyz answered 503: no database"),
        (
            b'HTTP/1.1 503 Unavailable\r\n\r\n{"parts": {"reader": "failing"}, "detail": "Not well: reader."}',
            "/readyz answered 503: Not well: reader.$",
        ),
        (b'HTTP/1.1 503 Unavailable\r\n\r\n["no problem"]', r'/readyz answered 503: \["no problem"\]$'),
        (b"", "/readyz answered nothing"),
        (b"nonsense", "/readyz answered nothing"),
    ],
)
async def test_anything_else_is_not_and_says_what_came(answer: bytes, said: str) -> None:
    with pytest.raises(NotReady, match=said):
        await ask(answer)


async def test_nobody_listening_is_an_error_of_the_system() -> None:
    with pytest.raises(ConnectionRefusedError):
        await expect_ok("http://127.0.0.1:1/readyz")
