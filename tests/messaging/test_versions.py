"""Records of other versions, through the whole consumer: later minors are read, an unknown major waits aside."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from messaging.codec import Codec, Contract
from messaging.deadletter import DEAD_REASON, original_headers
from messaging.job import Job
from messaging.message import headers_to_dict
from messaging.policy import Policy
from messaging.readers import EventReader
from messaging.registry import Registry, Schema
from schemas import catalog, events
from tests.fixtures.bad_input import Placing, Raw
from tests.fixtures.framed import framed
from tests.fixtures.stack import Infra
from tests.messaging.harness import Recording, consuming, read_all, until

ORDERED = Policy(per_key=1, total=4, ordered=True)
AFTER = 1000
KEY = b"acme:ann"


@pytest.fixture
async def registry(infra: Infra) -> AsyncIterator[Registry]:
    opened = Registry(infra.registry_url)
    yield opened
    await opened.close()


async def written(
    registry: Registry, topic: str, schema: Schema, record: dict[str, Any], type_: str, major: int
) -> Raw:
    """A record as a service of that version writes it. The schema is registered first, as its deploy step does."""
    schema_id = await registry.register(Contract(object, topic, schema).subject, schema)
    identity = str(uuid.uuid4()).encode()
    return Raw(
        KEY,
        framed(schema_id, schema, record),
        [("ce_id", identity), ("ce_type", type_.encode()), ("event_version", str(major).encode())],
    )


def contract(event: type[Any], topic: str) -> Contract:
    """An event of the house, on a topic of the test's."""
    return next(Contract(event, topic, known.schema) for known in catalog.contracts() if known.event is event)


async def test_a_minor_of_tomorrow_and_one_of_yesterday_are_read_today(
    infra: Infra, registry: Registry, source: Any
) -> None:
    """request.created 1.0, 1.1 and a 1.2 that only the registry knows, side by side to a consumer of today."""
    sub = source(1, ORDERED)
    oldest, *_, today = (version.schema() for version in catalog.line("request.created", 1))
    tomorrow = {
        **today,
        "fields": [*today["fields"], {"name": "added_later", "type": "int", "default": 0, "doc": "New."}],
    }
    record = {"request_id": "r", "tenant": "acme", "sender": "ann", "team": "IT", "title": "Printer", "body": ""}
    records = [
        await written(registry, sub.topic, oldest, record, "request.created", 1),
        await written(registry, sub.topic, today, record | {"channel": "chat"}, "request.created", 1),
        await written(
            registry, sub.topic, tomorrow, record | {"channel": "message", "added_later": 9}, "request.created", 1
        ),
    ]
    read: list[Any] = []

    async def work(job: Job) -> None:
        read.append(job.event)

    handler = Recording(work)
    codec = Codec(registry, [contract(events.RequestCreated, sub.topic)])
    reader = EventReader(codec, {events.RequestCreated: handler})
    Placing(infra.kafka_bootstrap).put(sub.topic, records)
    async with consuming(infra.kafka_bootstrap, sub, handler, reader=reader):
        await until(lambda: len(read) == len(records), 30, "all three are read")
    assert read == [events.RequestCreated(**record, channel=channel) for channel in ("api", "chat", "message")]
    assert read_all(infra.kafka_bootstrap, sub.dead_letter_topic) == []


async def test_an_event_of_an_unknown_major_waits_aside_while_the_thousand_after_it_go_through(
    infra: Infra, registry: Registry, source: Any
) -> None:
    """To a consumer of yesterday, which reads document.received 1 only; all are of one sender, strictly in order."""
    sub = source(1, ORDERED)
    old, new = (catalog.line("document.received", major)[-1].schema() for major in (1, 2))
    record = {"document_id": "d", "tenant": "acme", "sender": "ann", "kind": "url", "content_type": "text/html"}
    unknown = await written(registry, sub.topic, new, record | {"size_bytes": None}, "document.received", 2)
    one = await written(registry, sub.topic, old, record | {"size_bytes": 7}, "document.received", 1)
    known = [one.but(ce_id=f"known-{number}".encode()) for number in range(AFTER)]

    async def work(job: Job) -> None:
        assert isinstance(job.event, events.DocumentReceivedV1)

    handler = Recording(work)
    codec = Codec(registry, [contract(events.DocumentReceivedV1, sub.topic)])
    reader = EventReader(codec, {events.DocumentReceivedV1: handler})
    Placing(infra.kafka_bootstrap).put(sub.topic, [unknown, *known])
    async with consuming(infra.kafka_bootstrap, sub, handler, reader=reader):
        await until(lambda: len(handler.starts) >= AFTER, 60, "the thousand go through")
        await until(lambda: len(read_all(infra.kafka_bootstrap, sub.dead_letter_topic)) == 1, 30, "it waits aside")
    assert handler.ids() == [f"known-{number}" for number in range(AFTER)], "once each, in order"
    (letter,) = read_all(infra.kafka_bootstrap, sub.dead_letter_topic)
    assert headers_to_dict(letter.headers())[DEAD_REASON] == b"unknown_event"
    assert (letter.key(), letter.value(), original_headers(letter.headers())) == (
        unknown.key,
        unknown.value,
        unknown.headers,
    )
