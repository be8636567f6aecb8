"""Driver and probe against a stand-in for the documents API, over real HTTP."""

import asyncio
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from loadtest.drive import Driver
from loadtest.probe import Measured, Orders, Probe, measure
from loadtest.records import Sent
from loadtest.scenario import Scenario
from messaging.errors import Outage
from web import tokens

SECRET = "a secret that is long enough for HS256"
SCENARIO = Scenario(senders=("noisy", "ana", "ben"), counts=(12, 4, 4), broken=4)


@dataclass
class StandIn:
    """Accepts documents, one per Idempotency-Key, after `delay`; a key's first `refusals` POSTs get 503, the very
    first `failures` POSTs 500."""

    url: str = ""
    delay: float = 0.0
    refusals: int = 0
    failures: int = 0
    status: int = 202
    posts: list[tuple[float, str, str, str]] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    connections: set[tuple[str, int]] = field(default_factory=set)

    async def post(self, request: Request) -> Response:
        arrived = time.time()
        identity = tokens.verify(SECRET, request.headers["authorization"].removeprefix("Bearer "))
        key = request.headers["idempotency-key"]
        self.posts.append((arrived, identity.tenant, identity.sub, key))
        self.bodies[key] = await request.body()
        assert request.client is not None
        self.connections.add((request.client.host, request.client.port))
        await asyncio.sleep(self.delay)
        if len(self.posts) <= self.failures:
            return JSONResponse({"title": "broken"}, 500)
        if Counter(post[3] for post in self.posts)[key] <= self.refusals:
            return JSONResponse({"title": "full"}, 503, {"Retry-After": "0"})
        return JSONResponse({"id": f"id-of-{key}"}, self.status)


@pytest.fixture
def api() -> Iterator[StandIn]:
    stand_in = StandIn()
    app = FastAPI()
    app.add_api_route("/api/documents", stand_in.post, methods=["POST"], response_model=None)
    listener = socket.create_server(("127.0.0.1", 0))
    stand_in.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield stand_in
    server.should_exit = True
    thread.join()


async def send(api: StandIn) -> list[Sent]:
    heard: list[Sent] = []
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as client:
        driver = Driver(client, SCENARIO, "run", "http://127.0.0.1:1/pages")
        await driver.send(list(SCENARIO.plan()), SECRET, "load-run", heard.append)
    assert heard == driver.sent
    return driver.sent


async def test_everything_is_sent_once_by_its_sender(api: StandIn) -> None:
    sent = await send(api)
    assert Counter(one.sender for one in sent) == {"noisy": 12, "ana": 4, "ben": 4}
    assert {one.id for one in sent} == {f"id-of-run-{index}" for index in range(20)}
    assert Counter((tenant, sub) for _, tenant, sub, _ in api.posts) == {
        ("load-run", "noisy"): 12, ("load-run", "ana"): 4, ("load-run", "ben"): 4,
    }  # fmt: skip
    assert sum(one.broken for one in sent) == 4
    for one in sent:
        assert one.accepted_at is not None
        assert one.posted_at <= one.accepted_at


async def test_pdfs_go_as_files_texts_as_text_and_pages_as_their_address(api: StandIn) -> None:
    await send(api)
    for _, document in SCENARIO.plan():
        body = api.bodies[f"run-{document.index}"]
        match document.kind:
            case "pdf":
                assert document.content in body
                assert b"application/pdf" in body
            case "text":
                assert httpx.Response(200, content=body).json() == {"text": document.content.decode()}
            case "page":
                assert httpx.Response(200, content=body).json() == {
                    "url": f"http://127.0.0.1:1/pages/33/{document.index}.html"
                }


async def test_the_noisy_sender_has_started_every_post_before_the_others_begin(api: StandIn) -> None:
    api.delay = 0.02
    sent = await send(api)
    last_noisy = max(one.posted_at for one in sent if one.sender == "noisy")
    for sender in ("ana", "ben"):
        first = min(one.posted_at for one in sent if one.sender == sender)
        assert last_noisy <= first < last_noisy + 0.2


async def test_a_busy_api_is_asked_again_under_the_same_key(api: StandIn) -> None:
    api.refusals = 2
    sent = await send(api)
    assert len({one.id for one in sent}) == 20
    assert set(Counter(key for *_, key in api.posts).values()) == {3}


async def test_a_refusal_for_good_is_recorded_and_the_rest_is_sent(api: StandIn) -> None:
    api.status = 422
    sent = await send(api)
    assert len(sent) == 20
    assert all(one.id is None and one.error is not None and one.error.startswith("422") for one in sent)
    assert len(api.posts) == 20


async def test_the_probe_keeps_its_pace_on_one_connection_and_measures_what_the_api_takes(api: StandIn) -> None:
    api.delay = 0.05
    token = tokens.issue(SECRET, "probe", "load-run-probe", ["sender"], 60)
    probe = await Probe.start(Orders(api.url, token, (("a", "first"), ("b", "second"))))
    assert [key for *_, key in api.posts][:2] == ["a", "b"], "each once, before it measures"
    await asyncio.sleep(1.5)
    measured = await probe.stop()
    assert len(api.connections) == 1
    assert [key for *_, key in api.posts] == (["a", "b"] * 10)[: len(api.posts)]
    arrivals = [arrived for arrived, *_ in api.posts][2:]
    assert 6 <= len(measured.milliseconds) == len(arrivals) <= 9
    assert (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1) == pytest.approx(0.2, abs=0.06)
    assert all(taken >= 50 for taken in measured.milliseconds)
    assert measured.errors == 0


async def test_the_probe_counts_answers_that_are_not_as_expected(api: StandIn) -> None:
    api.status = 500
    token = tokens.issue(SECRET, "probe", "load-run-probe", ["sender"], 60)
    probe = await Probe.start(Orders(api.url, token, (("a", "text"),)))
    while len(api.posts) < 3:
        await asyncio.sleep(0.01)
    measured = await probe.stop()
    assert measured.errors == len(api.posts) == len(measured.milliseconds) + 1 >= 3


async def test_what_fails_while_the_probe_warms_up_counts_too(api: StandIn) -> None:
    api.failures = 1
    token = tokens.issue(SECRET, "probe", "load-run-probe", ["sender"], 60)
    probe = await Probe.start(Orders(api.url, token, (("a", "first"), ("b", "second"))))
    while len(api.posts) < 5:
        await asyncio.sleep(0.01)
    measured = await probe.stop()
    assert measured.errors == 1
    assert len(measured.milliseconds) == len(api.posts) - 2, "its time is not taken"


async def test_a_probe_whose_start_is_broken_off_is_ended(api: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def noted(*command: str, **options: Any) -> asyncio.subprocess.Process:
        begun.append(await create(*command, **options))
        return begun[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    api.delay = 5.0
    token = tokens.issue(SECRET, "probe", "load-run-probe", ["sender"], 60)
    starting = asyncio.ensure_future(Probe.start(Orders(api.url, token, (("a", "text"),))))
    while not api.posts:
        await asyncio.sleep(0.01)
    assert begun[0].returncode is None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert begun[0].returncode == -signal.SIGKILL


def test_a_probe_that_is_told_to_stop_while_it_warms_up_stops(api: StandIn) -> None:
    stop = threading.Event()
    stop.set()
    orders = Orders(api.url, "sesame", (("a", "first"), ("b", "second")))
    measured = measure(orders, stop, lambda: pytest.fail("it is not warm"))
    assert measured == Measured((), 0)
    assert api.posts == []


async def test_a_probe_that_cannot_measure_says_so() -> None:
    with pytest.raises(Outage, match="exit code 1"):
        await Probe.start(Orders("https://127.0.0.1", "sesame", (("a", "text"),)))


def test_the_probes_token_does_not_show_when_its_orders_are_printed() -> None:
    assert "sesame" not in repr(Orders("http://127.0.0.1", "sesame", ()))
