"""A response that goes on: to clients that read, leave, or take nothing."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from web import sse
from web.problems import Problem
from web.sse import EventStream

SCOPE = {"type": "http", "path": "/stream"}


class Client:
    """One end of a connection: takes `takes` pieces, then nothing more; leaves when told to."""

    def __init__(self, takes: int = 10**9) -> None:
        self.got: list[Message] = []
        self.left = asyncio.Event()
        self._takes = takes

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.got) >= self._takes:
            await asyncio.sleep(3600)
        self.got.append(message)


class Source:
    """Events without end, and whether they were let go of."""

    def __init__(self, count: int | None = None) -> None:
        self.finished = 0
        self.let_go = False
        self._count = count

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            number = 0
            while self._count is None or number < self._count:
                number += 1
                yield sse.event({"n": number}, name="tick", number=number)
                await asyncio.sleep(0)
        finally:
            # What is held is given back in more than one step, as a connection is to its pool.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.let_go = True

    def finish(self) -> None:
        self.finished += 1


async def test_a_stream_that_ends_ends_its_answer() -> None:
    client, source = Client(), Source(3)
    await EventStream(source.events(), source.finish)(SCOPE, client.receive, client.send)
    start, *parts, end = client.got
    headers = dict(start["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    assert parts[0]["body"] == b'id: 1\nevent: tick\ndata: {"n":1}\n\n'
    assert (end["body"], end["more_body"]) == (b"", False)
    assert (source.finished, source.let_go) == (1, True)


async def test_who_leaves_is_let_go_of() -> None:
    client, source = Client(), Source()
    stream = asyncio.create_task(EventStream(source.events(), source.finish)(SCOPE, client.receive, client.send))
    await asyncio.sleep(0.01)
    client.left.set()
    await asyncio.wait_for(stream, 20)
    assert (source.finished, source.let_go) == (1, True)


async def test_who_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SEND_SECONDS", 0.05)
    client, source = Client(takes=3), Source()
    await asyncio.wait_for(EventStream(source.events(), source.finish)(SCOPE, client.receive, client.send), 20)
    assert len(client.got) == 3
    assert (source.finished, source.let_go) == (1, True)


async def test_a_fault_of_the_source_is_raised_and_let_go_of() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b": first\n\n"
        raise RuntimeError("broken")

    client, source = Client(), Source()
    with pytest.raises(RuntimeError, match="broken"):
        await EventStream(broken(), source.finish)(SCOPE, client.receive, client.send)
    assert source.finished == 1


async def test_a_stopped_server_lets_go() -> None:
    client, source = Client(takes=5), Source()
    stream = asyncio.create_task(EventStream(source.events(), source.finish)(SCOPE, client.receive, client.send))
    await asyncio.sleep(0.01)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    assert (source.finished, source.let_go) == (1, True)


@pytest.mark.parametrize("data", ["a\nb", "a\r\nb\u2028", {"title": "Grüße\n\n"}])
def test_data_is_one_line(data: Any) -> None:
    said = sse.event(data, name="tick", number=7).decode()
    first, second, third, *rest = said.split("\n")
    assert (first, second, rest) == ("id: 7", "event: tick", ["", ""])
    assert json.loads(third.removeprefix("data: ")) == data


def request(last: str | None) -> Request:
    headers = [] if last is None else [(b"last-event-id", last.encode())]
    return Request({**SCOPE, "headers": headers})


def test_the_last_id_goes_before_the_parameter() -> None:
    assert sse.cursor(request(None), None) is None
    assert sse.cursor(request(None), 5) == 5
    assert sse.cursor(request(" "), 5) == 5
    assert sse.cursor(request("7"), 5) == 7


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 19, "²"])
def test_an_id_that_is_none_of_ours_is_refused(last: str) -> None:
    with pytest.raises(Problem) as refused:
        sse.cursor(request(last), None)
    assert (refused.value.status, refused.value.faults[0][0]) == (422, "Last-Event-ID")
