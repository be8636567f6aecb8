"""The services behind the gateway: each gets the calls of its paths, and event streams pass through unbuffered."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from services.gateway.forwarding import Forwarding
from services.gateway.settings import GatewaySettings
from services.gateway.upstream import Upstream as Connections
from tests.fixtures.processes import SECRET, Running, token
from tests.gateway.conftest import Start
from tests.gateway.upstreams import Heard, Upstream, answering, says
from web.tokens import Bearer

SILENCE_SECONDS = 2.0
COMMENT_SECONDS = 15.0
"""How often a quiet event stream of ours shows that it lives."""

WATCHERS = 80
"""Fewer than an httpx client's hundred connections."""

STREAM = "/api/notifications/stream"


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Upstream]]:
    names = ("documents", "notifications", "analytics")
    with ExitStack() as stack:
        yield {name: stack.enter_context(answering(says("200 OK", content=name.encode()))) for name in names}


@pytest.fixture(scope="module")
def gateway(start: Start, services: dict[str, Upstream]) -> Iterator[Running]:
    origins = {f"{name}_url": service.url for name, service in services.items()}
    with start("api", upstream_timeout_seconds=SILENCE_SECONDS, **origins) as running:
        yield running


@pytest.fixture
def ann(gateway: Running) -> Iterator[httpx.Client]:
    with gateway.client("ann", "acme", "sender") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("/api/documents", "documents"),
        ("/api/documents/1/review", "documents"),
        ("/api/notifications?read=false", "notifications"),
        ("/api/notifications/1/read", "notifications"),
        ("/api/notifications/stream", "notifications"),
        ("/api/analytics", "analytics"),
        ("/api/analytics/events", "analytics"),
        ("/api/analytics/series?window=hour", "analytics"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_each_service_gets_the_calls_of_its_paths(
    ann: httpx.Client, services: dict[str, Upstream], path: str, service: str, method: str
) -> None:
    for upstream in services.values():
        upstream.answer = says("200 OK", content=b"here")
        upstream.heard.clear()
    answer = ann.request(method, path)
    assert (answer.status_code, answer.content) == (200, b"here")
    assert {
        name: [call.line for call in upstream.heard] for name, upstream in services.items() if upstream.heard
    } == {service: [f"{method} {path} HTTP/1.1"]}


@pytest.mark.parametrize("path", ["/api/notification", "/api/notificationsx", "/api/analyticsx/y"])
def test_what_only_looks_like_a_services_path_is_nobodys(
    ann: httpx.Client, services: dict[str, Upstream], path: str
) -> None:
    for upstream in services.values():
        upstream.heard.clear()
    assert ann.get(path).status_code == 404
    assert not any(upstream.heard for upstream in services.values())


def test_one_that_is_away_leaves_the_others_be(start: Start, services: dict[str, Upstream]) -> None:
    services["analytics"].answer = says("200 OK", content=b"here")
    with (
        start("api", notifications_url="http://127.0.0.1:9", analytics_url=services["analytics"].url) as gateway,
        gateway.client("ann", "acme", "sender") as ann,
    ):
        away = ann.get("/api/notifications")
        assert (away.status_code, away.headers["retry-after"]) == (503, "5")
        assert away.json()["type"] == "urn:workbot:problem:service-away"
        assert "notifications" in away.json()["detail"]
        assert ann.get("/api/analytics/events").content == b"here"


def test_events_pass_as_they_are_made(ann: httpx.Client, services: dict[str, Upstream]) -> None:
    """Each is with the client before the next is made, and as it was sent; the client's place is passed on."""
    upstream, go_on, events = services["notifications"], threading.Semaphore(0), 20

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(head())
        for number in range(events):
            writer.write(chunk(event(number)))
            await writer.drain()
            assert await asyncio.to_thread(go_on.acquire, timeout=20)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    upstream.answer = stream
    upstream.heard.clear()
    with ann.stream("GET", STREAM, headers={"Last-Event-ID": "7", "Accept": "text/event-stream"}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-cache"
        pieces = answer.iter_raw()
        for number in range(events):
            assert next(pieces) == event(number)
            go_on.release()
        assert list(pieces) == []
    assert upstream.heard[0].values("last-event-id") == ["7"]


def test_a_quiet_stream_that_shows_signs_of_life_is_not_cut(ann: httpx.Client, services: dict[str, Upstream]) -> None:
    """A comment at half the silence that is borne, for three times as long: as every 15 s of 30 s in production."""
    assert GatewaySettings(database_url="unused").upstream_timeout_seconds >= 2 * COMMENT_SECONDS
    comments = 6

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(head())
        for _ in range(comments):
            await asyncio.sleep(SILENCE_SECONDS / 2)
            writer.write(chunk(b": alive\n\n"))
            await writer.drain()
        writer.write(chunk(event(1)) + b"0\r\n\r\n")
        await writer.drain()

    services["notifications"].answer = stream
    with ann.stream("GET", STREAM) as answer:
        assert b"".join(answer.iter_raw()) == b": alive\n\n" * comments + event(1)


def test_a_stream_that_shows_none_is_broken_off(ann: httpx.Client, services: dict[str, Upstream]) -> None:
    """Or its client would wait for a service that froze, instead of asking again."""

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(head() + chunk(event(1)))
        await writer.drain()
        await reader.read(1)

    services["notifications"].answer = stream
    with ann.stream("GET", STREAM) as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == event(1)
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)


def test_many_watch_and_the_rest_is_served(
    gateway: Running, ann: httpx.Client, services: dict[str, Upstream]
) -> None:
    """Open streams by the dozen through one gateway, each alive; one that leaves is gone behind the gateway, too."""
    upstream, watched, left = services["notifications"], threading.Semaphore(0), threading.Semaphore(0)

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(head() + chunk(event(1)))
        await writer.drain()
        watched.release()
        gone = asyncio.ensure_future(reader.read(1))
        while not gone.done():
            writer.write(chunk(b": alive\n\n"))
            await asyncio.wait([gone], timeout=SILENCE_SECONDS / 4)
        left.release()

    upstream.answer = stream
    services["documents"].answer = says("200 OK", content=b"here")
    with ExitStack() as stack:
        client = stack.enter_context(gateway.client("ann", "acme", "sender"))
        for _ in range(WATCHERS):
            assert stack.enter_context(client.stream("GET", STREAM)).status_code == 200
            assert watched.acquire(timeout=30)
        assert ann.get("/api/documents").content == b"here"
        time.sleep(2 * SILENCE_SECONDS)
        assert not left.acquire(blocking=False), "a stream was cut"
    for _ in range(WATCHERS):
        assert left.acquire(timeout=30)


def test_stopping_ends_event_streams_and_waits_for_the_rest(start: Start, services: dict[str, Upstream]) -> None:
    """A stream has no end to wait for, so it is given one; another answer comes whole, however long it takes."""
    go_on = threading.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(head() + chunk(event(1)))
        await writer.drain()
        await reader.read(1)

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nfirst")
        await writer.drain()
        assert await asyncio.to_thread(go_on.wait, 30)
        writer.write(b"second")
        await writer.drain()

    services["notifications"].answer, services["documents"].answer = stream, slowly
    origins = {f"{name}_url": service.url for name, service in services.items()}
    with (
        start("api", drain_seconds=600, upstream_timeout_seconds=600, **origins) as gateway,
        gateway.client("ann", "acme", "sender") as ann,
        ann.stream("GET", STREAM) as watched,
        ann.stream("GET", "/api/documents/1/file") as loaded,
    ):
        events, file = watched.iter_raw(), loaded.iter_raw()
        assert (next(events), next(file)) == (event(1), b"first")
        gateway.process.send_signal(signal.SIGTERM)
        assert list(events) == []
        assert gateway.process.poll() is None, "the file is still being loaded"
        go_on.set()
        assert b"".join(file) == b"second"
        assert gateway.process.wait(60) == 0
        assert "answer.broke_off" not in gateway.log.read_text()


async def test_a_stream_that_comes_while_stopping_ends_at_once(services: dict[str, Upstream]) -> None:
    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(head())
        await writer.drain()
        await reader.read(1)

    services["notifications"].answer = stream
    upstream = Connections(services["notifications"].url, 600)
    forwarding = Forwarding("notifications", upstream, Bearer(SECRET), 600)
    forwarding.close()
    headers = {"Authorization": f"Bearer {token('ann', 'acme')}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(forwarding), base_url="http://gateway") as ann:
        answer = await asyncio.wait_for(ann.get(STREAM, headers=headers), 30)
    await upstream.close()
    assert (answer.status_code, answer.content) == (200, b"")


def head() -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def event(number: int) -> bytes:
    return b"id: %d\nevent: notification\ndata: {}\n\n" % number
