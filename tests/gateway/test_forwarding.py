"""Calls through the gateway: what the service hears, what the client hears, and what comes of either going away."""

import asyncio
import http.client
import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from services.gateway.forwarding import answer_headers, request_headers
from tests.documents.processes import resident_bytes
from tests.fixtures.processes import Running, token
from tests.gateway.conftest import Start
from tests.gateway.upstreams import Answer, Heard, Upstream, answering, body, says

PATH = "/api/documents"
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    """The service behind the gateway: each test says what it answers."""
    with answering(says("200 OK")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(start: Start, upstream: Upstream) -> Iterator[Running]:
    with start("api", documents_url=upstream.url, upstream_timeout_seconds=2.0, body_idle_seconds=1.0) as running:
        yield running


def scripted(upstream: Upstream, answer: Answer) -> Upstream:
    upstream.answer = answer
    upstream.heard.clear()
    return upstream


def test_a_call_is_passed_on_as_it_was_sent_but_for_what_is_between_two_neighbours(
    gateway: Running, upstream: Upstream
) -> None:
    scripted(
        upstream, says("201 Created", "X-Kept: a", "X-Kept: b", "Connection: x-hop", "X-Hop: 1", content=b'{"n": 1}')
    )
    sent = {
        "Connection": "close, x-mine",
        "X-Mine": "dropped",
        "X-Kept": "yes",
        "X-Forwarded-For": "10.0.0.1",
        "Traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    }
    with gateway.client("ann", "acme", "sender") as ann:
        answer = ann.post(f"{PATH}/a%2Fb?x=%20&x=2", content=b"hello", headers=sent)
    (call,) = upstream.heard
    assert call.line == f"POST {PATH}/a%2Fb?x=%20&x=2 HTTP/1.1"
    assert call.values("host") == [upstream.url.removeprefix("http://")]
    assert call.values("authorization")[0].startswith("Bearer ")
    assert (call.values("x-kept"), call.values("via"), call.body_bytes) == (["yes"], ["1.1 workbot-gateway"], 5)
    assert call.values("traceparent")[0][:36] == sent["Traceparent"][:36]
    for name in ("x-mine", "x-forwarded-for", "user-agent-of-ours", "cookie"):
        assert call.values(name) == []
    assert (answer.status_code, answer.json()) == (201, {"n": 1})
    assert answer.headers.get_list("x-kept") == ["a", "b"]
    assert "x-hop" not in answer.headers
    assert len(answer.headers.get_list("date")) == 1


def test_a_trace_is_made_for_a_call_without_one(gateway: Running, upstream: Upstream) -> None:
    scripted(upstream, says("200 OK"))
    with gateway.client("ann", "acme") as ann:
        ann.get(PATH)
    (trace,) = upstream.heard[0].values("traceparent")
    assert len(trace) == 55


def test_nobody_gets_anothers_cookie_or_encoding(gateway: Running, upstream: Upstream) -> None:
    scripted(upstream, says("200 OK", "Set-Cookie: session=anns"))
    with gateway.client("ann", "acme") as ann, gateway.client("bob", "acme") as bob:
        assert ann.get(PATH).headers["set-cookie"] == "session=anns"
        bob.get(PATH, headers={"Accept-Encoding": "identity"})
    assert upstream.heard[1].values("cookie") == []
    assert upstream.heard[1].values("accept-encoding") == ["identity"]


@pytest.mark.parametrize("path", ["/../metrics", "/%2e%2e/metrics", "/x/../../../metrics", "/."])
def test_nobody_climbs_out_of_the_service_s_paths(gateway: Running, upstream: Upstream, path: str) -> None:
    scripted(upstream, says("200 OK"))
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", PATH + path, headers={"Authorization": f"Bearer {token('ann', 'acme')}"})
    assert connection.getresponse().status == 404
    connection.close()
    assert upstream.heard == []


@pytest.mark.parametrize("header", [None, "Bearer forged", "Basic YTpi"])
def test_without_a_token_nothing_is_passed_on(gateway: Running, upstream: Upstream, header: str | None) -> None:
    scripted(upstream, says("200 OK"))
    headers = {} if header is None else {"Authorization": header}
    answer = httpx.post(gateway.url + PATH, content=b"x", headers=headers, trust_env=False)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
    assert upstream.heard == []


def test_an_address_of_the_service_becomes_one_of_ours(gateway: Running, upstream: Upstream) -> None:
    with gateway.client("ann", "acme") as ann:
        for said, told in (
            (f"{PATH}/1", f"{PATH}/1"),
            (f"{upstream.url}{PATH}/1", f"{PATH}/1"),
            (f"{upstream.url}0{PATH}", f"{upstream.url}0{PATH}"),
            ("https://example.com/x", "https://example.com/x"),
        ):
            scripted(upstream, says("202 Accepted", f"Location: {said}"))
            assert ann.get(PATH).headers["location"] == told


def test_an_answer_streams_as_it_is_made(gateway: Running, upstream: Upstream) -> None:
    go_on = threading.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        assert await asyncio.to_thread(go_on.wait, 5)
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
        await writer.drain()

    scripted(upstream, slowly)
    with gateway.client("ann", "acme") as ann, ann.stream("GET", PATH) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces) == b"first"
        go_on.set()
        assert b"".join(pieces) == b"second"


def test_both_ways_with_bounded_memory(gateway: Running, upstream: Upstream) -> None:
    size = 64 * MEGABYTE

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        async for _ in body(reader, call):
            pass
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(size // MEGABYTE):
            writer.write(bytes(MEGABYTE))
            await writer.drain()

    scripted(upstream, echo)
    before, most = resident_bytes(gateway.process.pid), 0
    with gateway.client("ann", "acme") as ann:
        piece = bytes(MEGABYTE)
        content = (piece for _ in range(size // MEGABYTE))
        with ann.stream("POST", PATH, content=content, headers={"Content-Length": str(size)}) as answer:
            read = 0
            for got in answer.iter_raw():
                read += len(got)
                most = max(most, resident_bytes(gateway.process.pid))
    assert (read, upstream.heard[0].body_bytes) == (size, size)
    assert most - before < 8 * MEGABYTE


def test_an_answer_before_the_whole_body_is_heard(gateway: Running, upstream: Upstream) -> None:
    """As the documents service does with what is too large: it says so and closes."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge")
        await writer.drain()
        writer.close()

    scripted(upstream, refuse)
    for _ in range(5):
        with gateway.client("ann", "acme") as ann:
            answer = ann.post(PATH, content=bytes(20 * MEGABYTE))
            assert (answer.status_code, answer.text) == (413, "large")


def test_a_client_that_leaves_takes_its_call_with_it(gateway: Running, upstream: Upstream) -> None:
    ended = threading.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        await reader.read(1)
        ended.set()

    scripted(upstream, wait)
    connection = calling(gateway, "GET", b"")
    until_heard(upstream)
    connection.close()
    assert ended.wait(1.8), "the service's connection is closed before the gateway's patience ends"


def test_a_client_that_takes_nothing_of_its_answer_is_dropped(gateway: Running, upstream: Upstream) -> None:
    """Or it would keep its call, and a connection to the service, for as long as it likes."""
    ended = threading.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        await pouring(writer, ended)

    scripted(upstream, endless)
    before = gateway.log.read_text().count("client.stalled")
    with calling(gateway, "GET", b""):
        until_heard(upstream)
        assert ended.wait(30), "the service is still sending"
    deadline = time.monotonic() + 30
    while gateway.log.read_text().count("client.stalled") != before + 1:
        assert time.monotonic() < deadline, gateway.log.read_text()
        time.sleep(0.01)


def test_a_client_that_takes_its_answer_slowly_is_borne(gateway: Running, upstream: Upstream) -> None:
    """For three times as long as one may take nothing."""
    ended = threading.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        await pouring(writer, ended)

    scripted(upstream, endless)
    before = gateway.log.read_text().count("client.stalled")
    with calling(gateway, "GET", b"") as connection:
        for _ in range(24):
            time.sleep(0.25)
            received = 0
            while received < MEGABYTE:
                piece = connection.recv(MEGABYTE)
                assert piece, "cut off"
                received += len(piece)
        assert not ended.is_set()
    assert ended.wait(30), "and it leaves like any other"
    assert gateway.log.read_text().count("client.stalled") == before


def test_a_client_that_leaves_in_the_middle_of_its_body(gateway: Running, upstream: Upstream) -> None:
    scripted(upstream, says("200 OK"))
    connection = calling(gateway, "POST", b"half", "Content-Length: 1000")
    until_heard(upstream)
    connection.close()
    deadline = time.monotonic() + 2
    while not upstream.heard[0].broken_off:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_stops_sending(gateway: Running, upstream: Upstream) -> None:
    scripted(upstream, says("200 OK"))
    connection = calling(gateway, "POST", b"half", "Content-Length: 1000")
    answer = b""
    while piece := connection.recv(65_536):
        answer += piece
    connection.close()
    assert answer.startswith(b"HTTP/1.1 408"), answer
    assert b"urn:workbot:problem:too-slow" in answer
    assert b"Nothing came of the body for 1 seconds" in answer
    assert answer.lower().count(b"connection: close") == 1


def test_a_service_that_stays_silent(gateway: Running, upstream: Upstream) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        await reader.read(1)

    scripted(upstream, silent)
    with gateway.client("ann", "acme") as ann:
        problem(ann.get(PATH), 504, "service-silent")


def test_a_service_that_breaks_off(gateway: Running, upstream: Upstream) -> None:
    async def before(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.close()

    async def within(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    with gateway.client("ann", "acme") as ann:
        scripted(upstream, before)
        answer = ann.get(PATH)
        problem(answer, 503, "service-broke-off")
        assert answer.headers["retry-after"] == "5"
        assert "Ask again" in answer.text
        assert "sent" not in answer.text
        answer = ann.post(PATH, content=b"x")
        problem(answer, 503, "service-broke-off")
        assert "Idempotency-Key" in answer.text
        scripted(upstream, within)
        with pytest.raises(httpx.RemoteProtocolError):
            ann.get(PATH)


def test_a_service_that_is_away(start: Start) -> None:
    """Who only asks has sent nothing that could have been kept."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with start("api", documents_url=origin) as alone, alone.client("ann", "acme") as ann:
            asked, sent = ann.get(PATH), ann.post(PATH, content=b"x")
    for answer in (asked, sent):
        problem(answer, 503, "service-away")
        assert answer.headers["retry-after"] == "5"
    assert "Ask again" in asked.text
    assert "kept" not in asked.text
    assert "Nothing was kept" in sent.text


def test_connections_to_the_service_are_kept(gateway: Running, upstream: Upstream) -> None:
    scripted(upstream, says("200 OK"))
    with gateway.client("ann", "acme") as ann:
        ann.get(PATH)
        before = upstream.connections
        for _ in range(20):
            ann.get(PATH)
    assert upstream.connections == before


def test_what_it_costs(gateway: Running, upstream: Upstream) -> None:
    scripted(upstream, says("200 OK", content=b"{}"))
    authorization = {"Authorization": f"Bearer {token('ann', 'acme')}"}
    figures: dict[str, list[float]] = {}
    ways = {"direct": upstream.url, "forwarded": gateway.url}
    connections = {way: http.client.HTTPConnection(url.removeprefix("http://")) for way, url in ways.items()}
    for _ in range(400):
        for way, connection in connections.items():
            began = time.perf_counter()
            connection.request("GET", PATH, headers=authorization)
            connection.getresponse().read()
            figures.setdefault(way, []).append(time.perf_counter() - began)
    for connection in connections.values():
        connection.close()
    medians = {way: statistics.median(times) for way, times in figures.items()}
    print(
        {
            way: (f"{medians[way] * 1000:.2f} ms", f"{sorted(times)[-4] * 1000:.2f} ms")
            for way, times in figures.items()
        }
    )
    assert medians["forwarded"] - medians["direct"] < 0.020


def test_framing_is_never_the_client_s_to_say_twice() -> None:
    sent = [
        (b"transfer-encoding", b"chunked"),
        (b"connection", b"content-length"),
        (b"te", b"trailers"),
        (b"a", b"1"),
    ]
    assert request_headers(sent, b"docs:1", None) == [
        (b"host", b"docs:1"),
        (b"a", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"via", b"1.1 workbot-gateway"),
    ]
    assert answer_headers([(b"Date", b"x"), (b"Location", b"http://docs:1"), (b"ETag", b"y")], b"http://docs:1") == [
        (b"location", b"/"),
        (b"etag", b"y"),
    ]


def calling(gateway: Running, method: str, content: bytes, *headers: str) -> socket.socket:
    """A call over a bare socket, which the test then treats badly."""
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    lines = [
        f"{method} {PATH} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token('ann', 'acme')}",
        *headers,
        "",
        "",
    ]
    connection.sendall("\r\n".join(lines).encode() + content)
    return connection


async def pouring(writer: asyncio.StreamWriter, ended: threading.Event) -> None:
    """An answer without end, until the gateway closes the connection."""
    try:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            await writer.drain()
    finally:
        ended.set()


def until_heard(upstream: Upstream) -> None:
    deadline = time.monotonic() + 5
    while not upstream.heard:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def problem(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(answer.text)["type"] == f"urn:workbot:problem:{kind}"
