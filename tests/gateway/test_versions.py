"""An event whose major a consumer does not know yet: aside, sent back after its reader was deployed, then handled."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from messaging.codec import Codec, Contract
from messaging.database import Pool
from messaging.job import Job
from messaging.policy import Policy
from messaging.readers import EventReader
from messaging.registry import Registry
from schemas import catalog, events
from services.gateway.decisions import Decisions
from services.gateway.records import Filter, Listed, Sight
from services.gateway.store import staff
from tests.fixtures.framed import framed
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.gateway.letterbox import projecting, put, sending, stored
from tests.messaging.harness import Recording, consuming, read_all, subscription, until

POLICY = Policy(per_key=1, total=4, ordered=True)
KNOWN = (events.DocumentReceivedV1, events.DocumentReceived)


@pytest.fixture
async def registry(infra: Infra) -> AsyncIterator[Registry]:
    opened = Registry(infra.registry_url)
    yield opened
    await opened.close()


async def open_letters(pool: Pool, sight: Sight, source: str) -> list[Listed]:
    async with pool.connection() as conn:
        return await staff.page(conn, sight, Filter(source=source, state="open"), below=None, limit=200)


async def test_what_is_sent_back_after_its_reader_was_deployed_is_handled_once(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str, registry: Registry
) -> None:
    (version,) = catalog.line("document.received", 2)
    contracts = {
        known.event: Contract(known.event, source, known.schema)
        for known in catalog.contracts()
        if known.event in KNOWN
    }
    schema_id = await registry.register(contracts[events.DocumentReceived].subject, version.schema())
    said = {"document_id": "d-1", "tenant": tenant, "sender": "ann", "kind": "url", "content_type": "text/html"}
    value = framed(schema_id, version.schema(), said | {"size_bytes": None})
    identity = str(uuid.uuid4())
    headers = [("ce_id", identity.encode()), ("ce_type", b"document.received"), ("event_version", b"2")]
    original = (f"{tenant}:ann".encode(), value, headers)

    sub = subscription(source, POLICY)
    sight, decisions = Sight(tenant), Decisions(pool, [(source, "reader")])
    handled: list[tuple[str, Any]] = []

    async def work(job: Job) -> None:
        handled.append((job.id, job.event))

    def build(*readers: type[Any]) -> EventReader:
        """What a service of that time reads: a build knows nothing of majors that came after it."""
        codec = Codec(registry, [contracts[event] for event in readers])
        return EventReader(codec, {event: Recording(work) for event in readers})

    def consumer(*readers: type[Any]) -> Any:
        return consuming(
            infra.kafka_bootstrap, sub, Recording(work), pool=pool, conninfo=home.conninfo, reader=build(*readers)
        )

    put(infra, source, [original])
    async with projecting(infra, pool, source), sending(infra, pool, source):
        async with consumer(events.DocumentReceivedV1):
            await until(lambda: stored(home, source) == 1, 30, "the old build sets it aside")
            (letter,) = await open_letters(pool, sight, source)
            assert (letter.reason, letter.generation, letter.owner) == ("unknown_event", 0, "ann")

            # Sent back too early: a letter again, with nothing lost on the way.
            await decisions.send_back(sight, letter.id, "grace")
            await until(lambda: stored(home, source) == 2, 30, "the old build sets it aside again")
        (again,) = await open_letters(pool, sight, source)
        assert (again.reason, again.generation) == ("unknown_event", 1)
        assert handled == []

        async with consumer(*KNOWN):
            await decisions.send_back(sight, again.id, "grace")
            await until(lambda: bool(handled), 30, "the new build handles it")
            # Whatever the topics hold, read anew, changes nothing: the marker after it is reached without a repeat.
            marker = [(name, b"marker" if name == "ce_id" else value) for name, value in headers]
            put(infra, source, [(original[0], original[1], marker)])
            await until(lambda: len(handled) == 2, 30, "the marker is handled")
    expected = events.DocumentReceived(**said, size_bytes=None)
    assert handled == [(identity, expected), ("marker", expected)]
    assert await open_letters(pool, sight, source) == []
    assert stored(home, source) == 2
    assert len(await asyncio.to_thread(read_all, infra.kafka_bootstrap, sub.retry_topic, 3)) == 2
