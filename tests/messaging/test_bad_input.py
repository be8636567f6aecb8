"""Whatever lies on a topic: what cannot be read is a dead letter with its reason, and the next record goes on."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, TopicPartition

from messaging.codec import Codec, Contract
from messaging.consumer import FairConsumer
from messaging.deadletter import DEAD_REASON, original_headers
from messaging.job import Job
from messaging.lag import Lag
from messaging.message import headers_to_dict
from messaging.policy import Policy, Subscription
from messaging.readers import EventReader
from messaging.registry import Registry, Schema
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from tests.fixtures.bad_input import NEVER_GIVEN, Headers, Placing, Raw, bad_records, within_a_second
from tests.fixtures.outbox import Proxy
from tests.fixtures.stack import Infra
from tests.messaging.harness import Recording, committed, consuming, read_all, subscription, until

LENDING, ORDERED = Policy(per_key=2, total=10, lend=True), Policy(per_key=1, total=4, ordered=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The one event of these tests."""

    TYPE: ClassVar[str] = "thing.said"
    MAJOR: ClassVar[int] = 1

    id: str


SCHEMA: Schema = {
    "type": "record",
    "name": "Said",
    "namespace": "test.v1",
    "fields": [{"name": "id", "type": "string"}],
}
OTHER: Schema = {**SCHEMA, "name": "Other"}


@dataclass
class Site:
    """A topic with its followers, and a codec over the real registry."""

    infra: Infra
    codec: Codec
    sub: Subscription
    other_schema: int

    def good(self, key: str = "acme:ann", size: int = 0) -> Raw:
        """A record that is read, about `size` bytes long."""
        headers: Headers = [
            ("ce_id", new()),
            ("ce_type", Said.TYPE.encode()),
            ("event_version", b"1"),
        ]
        said = Said(id="s" * max(1, size - len(key) - 20))
        return Raw(key.encode(), self.codec.encode(said), headers)

    @asynccontextmanager
    async def consuming(self, handler: Recording) -> AsyncIterator[FairConsumer]:
        reader = EventReader(self.codec, {Said: handler})
        async with consuming(self.infra.kafka_bootstrap, self.sub, handler, reader=reader) as consumer:
            yield consumer

    def letters(self) -> list[tuple[bytes | None, bytes | None, Headers, str]]:
        """Key, value, original headers and reason of each dead letter."""
        return [
            (
                letter.key(),
                letter.value(),
                original_headers(letter.headers()),
                headers_to_dict(letter.headers())[DEAD_REASON].decode(),
            )
            for letter in read_all(self.infra.kafka_bootstrap, self.sub.dead_letter_topic)
        ]


Build = Callable[..., Any]


@pytest.fixture
async def build(infra: Infra, topic: Callable[..., str]) -> AsyncIterator[Build]:
    """`await build(policy, registry_url)`: a site with topics as large as the house's."""
    registries = []

    async def make(policy: Policy = LENDING, registry_url: str = "") -> Site:
        sub = subscription(topic(), policy)
        for steps, follower in enumerate((sub.retry_topic, sub.dead_letter_topic), 1):
            topic(1, {"max.message.bytes": str(MAX_RECORD_BYTES + steps * HEADROOM_BYTES)}, follower)
        registry = Registry(registry_url or infra.registry_url)
        registries.append(registry)
        codec = Codec(registry, [Contract(Said, sub.topic, SCHEMA)])
        await registry.register(f"{sub.topic}-test.v1.Said", SCHEMA)
        other = await registry.register(f"{sub.topic}-test.v1.Other", OTHER)
        await codec.prepare([Said])
        return Site(infra, codec, sub, other)

    yield make
    for registry in registries:
        await registry.close()


async def nothing(_job: Job) -> None:
    """A no-op job."""


@pytest.mark.parametrize("policy", [LENDING, ORDERED], ids=["lending", "ordered"])
@pytest.mark.parametrize("suffix", ["", ".reader.retry"], ids=["topic", "retry topic"])
async def test_what_cannot_be_read_is_a_dead_letter_and_the_next_record_goes_on(
    build: Build, policy: Policy, suffix: str
) -> None:
    site: Site = await build(policy)
    topic = site.sub.topic + suffix
    limit = MAX_RECORD_BYTES + (HEADROOM_BYTES if suffix else 0)
    placing = Placing(site.infra.kafka_bootstrap)
    handler, loop = Recording(nothing), asyncio.get_running_loop()
    largest, _ = await asyncio.to_thread(placing.put_largest, topic, site.good(), limit)
    letters = [(largest.key, largest.value, largest.headers, "undecodable")]
    good: list[Raw] = []

    async def behind(records: list[Raw]) -> float:
        """Seconds from the writing of these, and of a good one behind them, to that one's start."""
        good.append(last := site.good())
        began = time.monotonic()
        await asyncio.to_thread(placing.put, topic, [*records, last])
        await until(lambda: known(last) in handler.ids(), what="the good record runs")
        return next(at for message_id, _, at in handler.starts if message_id == known(last)) - began

    def behind_bad() -> float:
        bad = [*bad_records(site.good(), site.other_schema).values(), (largest.but(ce_id=new()), "undecodable")]
        letters.extend((raw.key, raw.value, original_headers(raw.headers), reason) for raw, reason in bad)
        return asyncio.run_coroutine_threadsafe(behind([raw for raw, _ in bad]), loop).result()

    def behind_good() -> float:
        sizes = [raw.size for raw, _ in bad_records(site.good(), site.other_schema).values()]
        records = [site.good(size=size) for size in [*sizes, largest.size]]
        good.extend(records)
        return asyncio.run_coroutine_threadsafe(behind(records), loop).result()

    async with site.consuming(handler):
        await behind([])  # the group has formed
        await asyncio.to_thread(within_a_second, behind_good, behind_bad)
        await until(lambda: len(site.letters()) >= len(letters), what="each is a dead letter")
    assert sorted(handler.ids()) == sorted(map(known, good))
    found = site.letters()
    assert len(found) == len(letters)
    for letter in letters:
        assert letter in found


def known(raw: Raw) -> str:
    """A record's id."""
    return (dict(raw.headers)["ce_id"] or b"").decode()


def new() -> bytes:
    """An id nothing has."""
    return str(uuid.uuid4()).encode()


async def test_an_unknown_schema_waits_while_the_registry_is_away(infra: Infra, build: Build) -> None:
    """Whether it is unknown cannot be told then; and what is known is not lost behind it."""
    way = Proxy(infra.registry_url.split("/")[2], kafka=False)
    site: Site = await build(LENDING, infra.registry_url.replace(infra.registry_url.split("/")[2], way.address))
    placing, handler = Placing(infra.kafka_bootstrap), Recording(nothing)
    unknown, _ = bad_records(site.good(), site.other_schema)[f"schema {NEVER_GIVEN[0]}"]
    try:
        async with site.consuming(handler) as consumer:
            way.cut()
            placing.put(site.sub.topic, [site.good(), unknown, site.good(), site.good("acme:bob")])
            await until(lambda: consumer.queue("acme").held_by == ["registry"], what="starts are held")
            await asyncio.sleep(1.5)
            assert site.letters() == []
            assert committed(infra.kafka_bootstrap, site.sub) <= 1
            way.heal()
            await until(lambda: len(handler.starts) == 3, what="the others run")
            await until(lambda: committed(infra.kafka_bootstrap, site.sub) == 4)
        assert [letter[3] for letter in site.letters()] == ["unknown_event"]
        assert {attempt for _, attempt, _ in handler.starts} == {1}
    finally:
        way.close()


async def test_many_of_an_id_that_cannot_be_cost_the_registry_next_to_nothing(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    site: Site = await build()
    asked = 0
    ask = Registry._ask

    async def counted(self: Registry, schema_id: int) -> Schema:
        nonlocal asked
        asked += 1
        return await ask(self, schema_id)

    monkeypatch.setattr(Registry, "_ask", counted)
    unknown, _ = bad_records(site.good(), site.other_schema)[f"schema {NEVER_GIVEN[0]}"]
    copies = [unknown.but(ce_id=str(number).encode()) for number in range(300)]
    Placing(site.infra.kafka_bootstrap).put(site.sub.topic, copies)
    began = time.monotonic()
    async with site.consuming(Recording(nothing)):
        await until(lambda: committed(site.infra.kafka_bootstrap, site.sub) == 300, 30)
    assert 1 <= asked <= 2 + (time.monotonic() - began)


async def test_five_hundred_ids_that_cannot_be_hold_nobody_up(build: Build) -> None:
    """Each is asked for. Asking for fewer a second would mean holding every start in between: a good record then
    waited 29 s instead of 1."""
    site: Site = await build()
    placing, handler, loop = Placing(site.infra.kafka_bootstrap), Recording(nothing), asyncio.get_running_loop()
    floods = 0

    async def flood(marker: bytes) -> float:
        """Seconds that a good record waits behind 500 values of 20 senders that begin like this and with a number."""
        nonlocal floods
        first = NEVER_GIVEN[0] - 1000 * (floods := floods + 1)
        garbage = [
            Raw(f"acme:s{number % 20}".encode(), marker + (first - number).to_bytes(4, "big"), site.good().headers)
            for number in range(500)
        ]
        last = site.good("acme:bob")
        began = time.monotonic()
        await asyncio.to_thread(placing.put, site.sub.topic, [*garbage, last])
        await until(lambda: known(last) in handler.ids(), 60, what="the good record runs")
        waited = next(at for message_id, _, at in handler.starts if message_id == known(last)) - began
        async with asyncio.timeout(60):
            while len(await asyncio.to_thread(site.letters)) < 500 * floods:
                await asyncio.sleep(0.2)
        return waited

    def garbage() -> float:
        return asyncio.run_coroutine_threadsafe(flood(b"\xff"), loop).result()

    def unknown() -> float:
        return asyncio.run_coroutine_threadsafe(flood(b"\x00"), loop).result()

    async with site.consuming(handler):
        await asyncio.to_thread(within_a_second, garbage, unknown, 1)
    reasons = [letter[3] for letter in site.letters()]
    assert (reasons.count("undecodable"), reasons.count("unknown_event")) == (len(reasons) // 2,) * 2


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "garbage \x01\x7f",
        "{",
        '{"finished": [0, 1, 2]}',
        "AAAA////",
        "é" * 1000,
        "-1",
        "[[0, 99999999999999999999]]",
    ],
)
async def test_what_a_stranger_wrote_beside_an_offset_changes_nothing(build: Build, metadata: str) -> None:
    site: Site = await build()
    bootstrap, sub = site.infra.kafka_bootstrap, site.sub
    Placing(bootstrap).put(sub.topic, [site.good() for _ in range(5)])
    stranger = Consumer({"bootstrap.servers": bootstrap, "group.id": sub.group, "enable.auto.commit": False})
    place = TopicPartition(sub.topic, 0, 2, metadata)
    stranger.commit(offsets=[place], asynchronous=False)
    stranger.close()
    handler = Recording(nothing)
    async with site.consuming(handler):
        await until(lambda: committed(bootstrap, sub) == 5)
        lag = Lag(bootstrap, "test-lag")
        (partition,) = (await lag.of({sub.group: [(sub.topic, 0)]}))[sub.group]
        await lag.close()
    assert partition.position == 5
    assert len(handler.starts) == 3
    assert site.letters() == []
