"""The gateway's requests over HTTP, in processes of their own, and clients that cost next to nothing."""

import asyncio
import json
import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any
from unittest import mock

import uvloop

from loadtest.bench import filing, quiet
from messaging.database import make_pool
from messaging.errors import Outage
from messaging.process import serve
from messaging.registry import Registry
from messaging.relay import Relay
from schemas.events import RequestCreated
from services.gateway.api import requests as api
from services.gateway.settings import GatewaySettings
from web import tokens
from web.faces import make_face

_TOKEN_SECONDS = 3600.0
_START_SECONDS = 60.0


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
    """Requests a second that were answered 201, over so many kept connections."""
    headers = [
        f"POST {api.PATH} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {tokens.issue(secret, f's{number}', filing.TENANT, ['sender'], _TOKEN_SECONDS)}\r\n"
        for number in range(connections)
    ]
    began = time.perf_counter()
    counts = await asyncio.gather(*(_client(port, head, began + seconds) for head in headers))
    return sum(counts) / (time.perf_counter() - began)


async def _client(port: int, headers: str, until: float) -> int:
    ask = filing.ASK
    body = json.dumps({"title": ask.title, "body": ask.body, "team": ask.team})
    request = f"{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = 0
    try:
        while time.perf_counter() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 201"):
                raise Outage(f"The bench's own requests API answered {head[:40]!r}", "bench")
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            answered += 1
    finally:
        writer.close()
    return answered


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
            stack.enter_context(mock.patch.object(api, "create_request", filing.without_event))
        pool = make_pool(settings, "bench-api", autocommit=True)
        stack.push_async_callback(pool.close)
        await pool.open()
        registry = Registry(place.registry)
        stack.push_async_callback(registry.close)
        codec = filing.Rerouted(registry, place.topic)
        await codec.prepare([RequestCreated])
        face = make_face("Bench", live={}, ready={})
        face.include_router(api.router(pool, tokens.Bearer(place.secret), codec))
        leash.send(await stack.enter_async_context(serve(face, settings)))
        await asyncio.to_thread(_wait, leash)


def _wait(leash: Pipe) -> None:
    with suppress(EOFError):
        leash.recv()
