"""Schema ids that are kept: used only while the registry is away, and only for the very schema they stand for."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from structlog.testing import capture_logs

from messaging import schemaids
from messaging.codec import Codec, Contract
from messaging.database import Pool
from messaging.errors import Misconfigured, Outage
from messaging.learnt import Learnt, Name, name
from messaging.message import TYPE, VERSION
from messaging.registry import Registry, Schema
from tests.fixtures.outbox import Service, migrated
from tests.fixtures.stack import Database
from tests.messaging.harness import until
from tests.messaging.test_codec import CONTRACTS, ORDER, PLACED, SENT, OrderPlaced, OrderSent

WRITES = [OrderPlaced, OrderSent]
CHANGED: Schema = {
    **SENT,
    "fields": [{**SENT["fields"][0], "doc": "Ours."}],
}
"""The same bytes on the wire, and another version to the registry."""


class Front(Registry):
    """A registry without a server, that can be away or not know a schema."""

    def __init__(self, first: int = 1) -> None:
        super().__init__("http://127.0.0.1:9")
        self.away = self.refuses = False
        self._ids: dict[Name, int] = {}
        self._next = first

    async def lookup(self, subject: str, schema: Schema) -> int:
        if self.away:
            raise Outage("The schema registry answers 500.", "registry")
        if self.refuses:
            raise Misconfigured("The registry does not have this version.")
        found = self._ids.setdefault(name(subject, schema), self._next)
        self._next = max(self._ids.values()) + 1
        return found


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as service:
        yield service


@pytest.fixture
async def pool(service: Service) -> AsyncIterator[Pool]:
    """As a service has it: by its own role."""
    pool: Pool = AsyncConnectionPool(service.conninfo, min_size=1, max_size=4, open=False)
    await pool.open()
    yield pool
    await pool.close()


@pytest.fixture
def learnt(pool: Pool) -> Learnt:
    return Learnt(pool)


def made(registry: Registry, sent: Schema = SENT) -> Codec:
    """The codec of a process that has just started."""
    codec = Codec(registry, [CONTRACTS[0], Contract(OrderSent, "orders", sent)])
    codec.expect(WRITES)
    return codec


def schema_id(value: bytes) -> int:
    return int.from_bytes(value[1:5], "big")


async def test_a_process_starts_without_the_registry_on_what_another_learnt(learnt: Learnt, service: Service) -> None:
    registry = Front(first=41)
    first = made(registry)
    with pytest.raises(Outage, match="has not told the schema id of OrderPlaced yet"):
        first.encode(ORDER)
    assert not first.prepared()
    await first.prepare(WRITES, learnt)
    assert first.prepared()
    registry.away = True
    second = made(registry)
    await second.prepare(WRITES, learnt)
    assert second.prepared()
    assert second.encode(ORDER) == first.encode(ORDER)
    assert {schema_id(second.encode(ORDER)), schema_id(second.encode(OrderSent(id="o-1")))} == {41, 42}
    assert service.execute("SELECT count(*) FROM schema_ids") == [(2,)]


async def test_nothing_kept_is_an_outage_and_all_or_nothing(learnt: Learnt) -> None:
    registry = Front()
    await made(registry).prepare([OrderPlaced], learnt)
    registry.away = True
    codec = made(registry)
    with pytest.raises(Outage, match="answers 500"):
        await codec.prepare(WRITES, learnt)
    with pytest.raises(Outage):
        codec.encode(ORDER)
    with pytest.raises(Outage):
        await made(registry).prepare([OrderPlaced])


async def test_a_schema_that_changed_never_goes_under_the_old_id(learnt: Learnt, service: Service) -> None:
    registry = Front(first=7)
    await made(registry).prepare(WRITES, learnt)
    registry.away = True
    changed = made(registry, CHANGED)
    with pytest.raises(Outage):
        await changed.prepare(WRITES, learnt)
    registry.away = False
    await changed.prepare(WRITES, learnt)
    registry.away = True
    for schema, wanted in ((SENT, 8), (CHANGED, 9)):
        codec = made(registry, schema)
        await codec.prepare(WRITES, learnt)
        assert schema_id(codec.encode(OrderSent(id="o-1"))) == wanted
    assert len({name("orders", schema) for schema in (SENT, CHANGED, PLACED)}) == 3


async def test_a_registry_that_answers_is_believed_over_what_is_kept(learnt: Learnt, service: Service) -> None:
    await made(Front(first=1)).prepare(WRITES, learnt)
    written = service.execute("SELECT learnt_at FROM schema_ids ORDER BY id")
    await made(Front(first=1)).prepare(WRITES, learnt)
    assert service.execute("SELECT learnt_at FROM schema_ids ORDER BY id") == written
    anew = Front(first=101)
    await made(anew).prepare(WRITES, learnt)
    anew.away = True
    codec = made(anew)
    await codec.prepare(WRITES, learnt)
    assert schema_id(codec.encode(ORDER)) == 101
    refusing = Front()
    refusing.refuses = True
    with pytest.raises(Misconfigured):
        await made(refusing).prepare(WRITES, learnt)


async def started_on_kept_ids(registry: Front, pool: Pool, stack: AsyncExitStack) -> Codec:
    """A process that came up while the registry was away."""
    registry.away = True
    codec = made(registry)
    await schemaids.learn(stack, codec, WRITES, pool)
    return codec


async def test_kept_ids_that_a_restored_registry_no_longer_means_are_put_right(learnt: Learnt, pool: Pool) -> None:
    await made(Front(first=1)).prepare(WRITES, learnt)
    restored = Front(first=101)
    async with AsyncExitStack() as stack:
        with capture_logs() as lines:
            codec = await started_on_kept_ids(restored, pool, stack)
            before = codec.encode(ORDER)
            assert schema_id(before) == 1
            await until(lambda: has(lines, "start.waits"), 30, "the registry is asked again")
            # It is back, and the deploy step has not run on it yet: that is waited for, too.
            restored.refuses, restored.away = True, False
            await until(lambda: has(lines, "start.waits", "does not have this version"), 30, "a refusal is no end")
            restored.refuses = False
            await until(lambda: has(lines, "start.goes_on"), 30, "the registry has answered")
    assert [schema_id(codec.encode(event)) for event in (ORDER, OrderSent(id="o-1"))] == [101, 102]
    # What it has written meanwhile is read as it was written.
    named = {TYPE: OrderPlaced.TYPE.encode(), VERSION: str(OrderPlaced.MAJOR).encode()}
    assert codec.decode_known(named, before, WRITES) == ORDER
    wrong = [line for line in lines if line["event"] == "codec.kept_id_was_wrong"]
    assert [(line["log_level"], line["kept"], line["registry"]) for line in wrong] == [
        ("error", 1, 101),
        ("error", 2, 102),
    ]
    restored.away = True
    codec = made(restored)
    assert not await codec.prepare(WRITES, learnt)
    assert schema_id(codec.encode(ORDER)) == 101


async def test_kept_ids_that_still_hold_are_checked_once_and_quietly(learnt: Learnt, pool: Pool) -> None:
    registry = Front(first=1)
    await made(registry).prepare(WRITES, learnt)
    async with AsyncExitStack() as stack:
        with capture_logs() as lines:
            codec = await started_on_kept_ids(registry, pool, stack)
            await until(lambda: has(lines, "start.waits"), 30, "the registry is asked again")
            registry.away = False
            await until(lambda: has(lines, "start.goes_on"), 30, "the registry has answered")
    assert schema_id(codec.encode(ORDER)) == 1
    assert not has(lines, "codec.kept_id_was_wrong")


async def test_a_process_that_ends_while_the_registry_is_away_stops_asking(learnt: Learnt, pool: Pool) -> None:
    registry = Front(first=1)
    await made(registry).prepare(WRITES, learnt)
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        await started_on_kept_ids(registry, pool, stack)
        await until(lambda: len(asyncio.all_tasks() - before) == 1, 30, "it is asked in the background")
    assert asyncio.all_tasks() == before


def has(lines: Sequence[Mapping[str, object]], event: str, error: str = "") -> bool:
    return any(line["event"] == event and error in str(line.get("error", "")) for line in lines)


async def test_many_learn_at_once(learnt: Learnt) -> None:
    ids = {Name(f"subject-{number}", b"print"): number for number in range(50)}
    shuffled = [dict(sorted(ids.items(), key=lambda item: hash((seed, item)))) for seed in range(8)]
    await asyncio.gather(
        *(learnt.keep({one: id_ + seed for one, id_ in some.items()}) for seed, some in enumerate(shuffled))
    )
    await learnt.keep(ids)
    assert await learnt.find([*ids, Name("subject-1", b"another"), Name("none", b"print")]) == ids
    assert await learnt.find([]) == {}


@pytest.mark.usefixtures("learnt")
def test_the_service_may_learn_and_not_rewrite_what_was_asked(service: Service) -> None:
    with service.connect() as connection:
        connection.execute("INSERT INTO schema_ids (subject, fingerprint, id) VALUES ('s', '', 1)")
        for statement in ("DELETE FROM schema_ids", "UPDATE schema_ids SET subject = 't'", "TRUNCATE schema_ids"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
