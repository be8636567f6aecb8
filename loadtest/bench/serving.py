"""The gateway's requests over HTTP, in processes of their own, and clients that cost next to nothing."""

import asyncio
import json
import multiprocessing
import re
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any, cast

import uvloop

from loadtest.bench import filing, quiet
from messaging.database import make_pool
from messaging.errors import Outage
from messaging.process import serve, settle_memory
from messaging.registry import Registry
from messaging.relay import Relay
from schemas.events import RequestCreated
from services.gateway.api import requests as api
from services.gateway.desk import Desk
from services.gateway.settings import GatewaySettings
from web import tokens
from web.faces import make_face

_TOKEN_SECONDS = 3600.0
_START_SECONDS = 60.0
_LENGTH = re.compile(rb"(?i)\ncontent-length: *(\d+)")
_WARM_SECONDS = 0.2
"""Before the counting: until the relay is awake, and reads as seldom as it does while many come."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests are kept, and their events go."""

    database: str
    kafka: str
    registry: str
    topic: str
    secret: str


@contextmanager
def api_process(place: Place, *, with_event: bool) -> Iterator[int]:
    """`POST /api/requests` as the gateway serves it, or without the event; yields the port."""
    with _child(_run_api, place, with_event) as pipe:
        if not pipe.poll(_START_SECONDS):
            raise Outage("The bench's own requests API does not start.", "bench")
        yield pipe.recv()


@contextmanager
def relay_process(place: Place) -> Iterator[None]:
    """A relay for those events."""
    with _child(_run_relay, place):
        yield


async def rate(port: int, secret: str, connections: int, seconds: float) -> float:
    """Requests a second that were answered 201, over so many kept connections, once these are at their pace."""
    ask, loop = filing.ASK, asyncio.get_running_loop()
    body = json.dumps({"title": ask.title, "body": ask.body, "team": ask.team})
    began = time.perf_counter() + _WARM_SECONDS
    clients = []
    for number in range(connections):
        token = tokens.issue(secret, f"s{number}", filing.TENANT, ["sender"], _TOKEN_SECONDS)
        request = (
            f"POST {api.PATH} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        make = partial(_Client, request.encode(), began, began + seconds)
        _, client = await loop.create_connection(make, "127.0.0.1", port)
        clients.append(client)
    try:
        counts = await asyncio.gather(*(client.answered for client in clients))
    finally:
        for client in clients:
            client.close()
    return sum(counts) / (time.perf_counter() - began)


class _Client(asyncio.Protocol):
    """Sends its request again with each answer. `answered`: how many came in the time between."""

    def __init__(self, request: bytes, since: float, until: float) -> None:
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._request = request
        self._since = since
        self._until = until
        self._count = 0
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's are of another family.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, end, body = self._heard.partition(b"\r\n\r\n")
        if not end:
            return
        if not head.startswith(b"HTTP/1.1 201"):
            self._fail(f"answered {head[:40]!r}")
            return
        if len(body) < int(_LENGTH.findall(head)[0]):
            return
        now, self._heard = time.perf_counter(), b""
        self._count += now >= self._since
        if now < self._until:
            self._transport.write(self._request)
        elif not self.answered.done():
            self.answered.set_result(self._count)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"hung up: {error}")

    def close(self) -> None:
        """Hang up."""
        self.answered.cancel()
        self._transport.close()

    def _fail(self, what: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(Outage(f"The bench's own requests API {what}", "bench"))
        self._transport.close()


@contextmanager
def _child(run: Any, *given: object) -> Iterator[Pipe]:
    """A process that ends with ours, however ours ends: then its end of the pipe is closed."""
    context: Any = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(*given, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def _run_relay(place: Place, leash: Pipe) -> None:
    quiet.be_quiet()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    relay = Relay(place.database, place.kafka, "bench")
    relay.start()
    settle_memory()
    _wait(leash)
    relay.stop()


def _run_api(place: Place, with_event: bool, leash: Pipe) -> None:
    quiet.be_quiet()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(place, leash, with_event=with_event))


async def _serve(place: Place, leash: Pipe, *, with_event: bool) -> None:
    settings = GatewaySettings.model_validate({"database_url": place.database})
    async with AsyncExitStack() as stack:
        if not with_event:
            stack.enter_context(filing.no_events())
        pool = make_pool(settings, "bench-api", autocommit=True)
        stack.push_async_callback(pool.close)
        await pool.open()
        registry = Registry(place.registry)
        stack.push_async_callback(registry.close)
        codec = filing.Rerouted(registry, place.topic)
        await codec.prepare([RequestCreated])
        face = make_face("Bench", live={}, ready={})
        face.include_router(api.router(pool, tokens.Bearer(place.secret), Desk(pool, codec)))
        port = await stack.enter_async_context(serve(face, settings))
        settle_memory()
        leash.send(port)
        await asyncio.to_thread(_wait, leash)


def _wait(leash: Pipe) -> None:
    with suppress(EOFError):
        leash.recv()
