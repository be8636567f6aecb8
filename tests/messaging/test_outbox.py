"""The write side: rows in the caller's transaction, limits that reach the writer, partitions that come and go."""

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import perf_counter as clock
from typing import Any

import psycopg
import pytest

from messaging import outbox
from messaging.database import Connection
from messaging.errors import OutboxFull
from messaging.message import Envelope
from messaging.positions import Positions
from tests.fixtures.outbox import Service, drain, envelope, fill, migrated, subjects, write
from tests.fixtures.stack import Database

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


@asynccontextmanager
async def transaction(service: Service) -> AsyncIterator[Connection]:
    """A connection of the app role in a transaction that commits at the end of the block."""
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        yield connection


def stored(service: Service, columns: str = "subject") -> list[tuple[object, ...]]:
    return service.execute(f"SELECT {columns} FROM outbox ORDER BY seq")


async def test_events_are_written_whole_and_in_order(service: Service) -> None:
    happened = datetime(2026, 5, 4, 12, 0, 0, 123456, tzinfo=UTC)
    texts = [envelope("t", str(number), payload=bytes([number, 0, 255])) for number in range(50)]
    envelopes = [replace(text, occurred_at=happened) for text in texts]
    async with transaction(service) as connection:
        await outbox.add(connection, envelopes)
        assert stored(service) == []
    columns = "id, topic, key, type, version, payload, source, subject, traceparent, occurred_at"
    names = columns.split(", ")
    rows = [Envelope(**dict(zip(names, row, strict=True))) for row in stored(service, columns)]  # type: ignore[arg-type]
    assert rows == envelopes


async def test_nothing_is_nothing(service: Service) -> None:
    async with transaction(service) as connection:
        await outbox.add(connection, [])
        status = connection.info.transaction_status
        assert status == psycopg.pq.TransactionStatus.IDLE


async def test_the_callers_rollback_takes_the_events_with_it(service: Service) -> None:
    async with transaction(service) as connection:
        await outbox.add(connection, [envelope("t", "undone")])
        await connection.rollback()
    assert stored(service) == []


@pytest.mark.parametrize(
    "faulty",
    [
        envelope("t", "x", payload=b"x" * 900_001),
        envelope("", "x"),
        envelope("t" * 250, "x"),
        envelope("t", "x", key="k" * 1025),
        envelope("t", "x", key=""),
        envelope("t", ""),
    ],
    ids=["payload", "no topic", "topic", "key", "no key", "no subject"],
)
async def test_what_kafka_would_refuse_is_refused_to_the_writer(service: Service, faulty: Envelope) -> None:
    async with transaction(service) as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            await outbox.add(connection, [envelope("t", "fine"), faulty])
    assert stored(service) == []


@pytest.mark.parametrize("faulty", [envelope("t", "x", payload=b"x" * 900_001), envelope("t", "x", key="k" * 1025)])
async def test_it_is_refused_also_when_it_comes_alone(service: Service, faulty: Envelope) -> None:
    async with transaction(service) as connection:
        with pytest.raises(psycopg.errors.CheckViolation):
            await outbox.add(connection, [faulty])
    assert stored(service) == []


async def test_one_alone_is_written_as_one_of_many(service: Service) -> None:
    """Two statements, one row: every column but who wrote it when."""
    told = replace(
        envelope("t", "é'\\\"x", payload=bytes(range(256))), traceparent=None, occurred_at=datetime.now(UTC)
    )
    for together in (False, True):
        async with transaction(service) as connection:
            await outbox.add(connection, [told, told] if together else [told])
    rows = service.execute(
        "SELECT id, topic, key, type, version, payload, source, subject, traceparent, occurred_at FROM outbox"
    )
    assert len(rows) == 3
    assert len(set(rows)) == 1
    assert rows[0][4:9] == (1, bytes(range(256)), "tests", "é'\\\"x", None)


async def test_every_partition_has_the_one_check(service: Service) -> None:
    """Also those made before it, and those made later; none has those that it stands for."""
    service.execute("CREATE TABLE outbox_20200101 (LIKE outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
    service.execute(
        "ALTER TABLE outbox ATTACH PARTITION outbox_20200101 FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
    )
    found = service.execute(
        "SELECT c.relname, array_agg(k.conname::text) FROM pg_class c LEFT JOIN pg_constraint k"
        " ON k.conrelid = c.oid AND k.contype = 'c' WHERE c.relname ~ '^outbox(_[0-9]{8}|_default)?$' GROUP BY 1"
    )
    assert len(found) > 3
    assert {tuple(names) for _, names in found} == {("outbox_fits",)}


async def test_the_largest_payload_is_taken(service: Service) -> None:
    async with transaction(service) as connection:
        await outbox.add(connection, [envelope("t", "x", payload=b"x" * 900_000)])
    assert stored(service, "octet_length(payload)") == [(900_000,)]


async def test_one_statement_writes_the_row_and_its_event(service: Service) -> None:
    """The event is there exactly when the row is, also when the statement changes nothing."""
    service.execute("CREATE TABLE request (id uuid PRIMARY KEY, title text)")
    service.execute("GRANT ALL ON request TO PUBLIC")
    statement = (
        "WITH request AS (INSERT INTO request VALUES (%(request)s, 'title') ON CONFLICT DO NOTHING RETURNING id), "
        f"events AS ({outbox.INSERT} WHERE EXISTS (SELECT FROM request)) SELECT id FROM request"
    )
    request = uuid.uuid4()
    events = outbox.parameters([envelope("t", "first"), envelope("t", "second")])
    async with transaction(service) as connection:
        for expected in ((request,), None):
            cursor = await connection.execute(statement.encode(), {**events, "request": request})
            assert await cursor.fetchone() == expected
    assert stored(service) == [("first",), ("second",)]


async def test_events_of_one_kind_become_the_rows_that_others_do(service: Service) -> None:
    """Whole, in order, one with a trace and one without."""
    columns = "topic, key, type, version, payload, source, subject, traceparent, id"
    told = [
        replace(envelope("t", text), traceparent=trace) for text, trace in (("b", None), ("a", TRACE), ("c", None))
    ]
    async with transaction(service) as connection:
        await connection.execute(outbox.INSERT_ALIKE, outbox.alike(told))
    alike = stored(service, columns)
    service.execute("DELETE FROM outbox")
    async with transaction(service) as connection:
        await outbox.add(connection, told)
    assert alike == stored(service, columns)
    assert [row[6] for row in alike] == [told_.subject for told_ in told]


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "other"},
        {"type": "other"},
        {"version": 2},
        {"source": "other"},
        {"occurred_at": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_what_is_not_of_one_kind_is_not_written_as_if_it_were(changed: dict[str, Any]) -> None:
    one = envelope("t", "one")
    with pytest.raises(ValueError, match="when it happened" if "occurred_at" in changed else "one kind"):
        outbox.alike([one, replace(one, **changed)])
    with pytest.raises(ValueError, match="none"):
        outbox.alike([])


async def test_a_full_outbox_says_so(service: Service) -> None:
    async with transaction(service) as connection:
        await outbox.add(connection, [envelope("t", "one")])
    service.execute("INSERT INTO outbox_limit (ceiling) VALUES (1)")
    async with transaction(service) as connection:
        with pytest.raises(OutboxFull):
            await outbox.add(connection, [envelope("t", "two")])
    service.execute("UPDATE outbox_limit SET ceiling = 2")
    async with transaction(service) as connection:
        await outbox.add(connection, [envelope("t", "three")])
    assert stored(service) == [("one",), ("three",)]


async def maintain(service: Service, keep: timedelta = outbox.REPLAY_WINDOW) -> int:
    async with transaction(service) as connection:
        return await outbox.maintain(connection, keep)


def partitions(service: Service) -> set[str]:
    rows = service.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox'::regclass")
    return {str(row[0]) for row in rows}


def day(offset: int) -> str:
    return f"outbox_{datetime.now(UTC) + timedelta(days=offset):%Y%m%d}"


async def test_partitions_are_made_ahead(service: Service) -> None:
    assert partitions(service) == {"outbox_default", *(day(offset) for offset in range(4))}
    service.execute(f"DROP TABLE {day(2)}")
    assert await maintain(service) == 0
    assert partitions(service) == {"outbox_default", *(day(offset) for offset in range(4))}


async def test_rows_of_a_wrong_clock_are_kept_and_delivered(service: Service) -> None:
    """Far in the past, far in the future, and on a day that has no partition."""
    service.execute(f"DROP TABLE {day(1)}")
    times = [datetime.now(UTC) + timedelta(days=days) for days in (-4000, -1, 1, 4000)]
    async with transaction(service) as connection:
        rows = [Envelope("t", "k:k", "e", 1, b"", "s", str(place), occurred_at=at) for place, at in enumerate(times)]
        await outbox.add(connection, rows)
    assert await maintain(service, timedelta(days=100_000)) == 0
    with service.connect() as reader:
        assert subjects(drain(service.cursor(reader, "commit"))) == ["0", "1", "2", "3"]


def old_partition(service: Service, days: int = 10) -> str:
    """A partition of some days ago, as it was made then."""
    service.execute(
        f"CREATE TABLE {day(-days)} PARTITION OF outbox"
        f" FOR VALUES FROM (current_date - {days}) TO (current_date - {days} + 1)"
    )
    return day(-days)


def confirm(service: Service) -> None:
    """Move the relay's position past all that is committed, as the relay does."""
    with service.connect() as connection:
        positions = Positions(connection, "relay")
        cursor = service.cursor(connection, "commit", positions.load())
        drain(cursor)
        positions.move(cursor.position)


async def test_only_confirmed_partitions_past_the_window_are_dropped(service: Service) -> None:
    part = old_partition(service)
    long_ago = datetime.now(UTC) - timedelta(days=10)
    held = service.connect(autocommit=False)
    insert = [Envelope("t", "k:k", "e", 1, b"", "s", "held", occurred_at=long_ago)]
    held.execute(outbox.INSERT, outbox.parameters(insert))
    async with transaction(service) as connection:
        await outbox.add(connection, [Envelope("t", "k:k", "e", 1, b"", "s", "old", occurred_at=long_ago)])

    assert await maintain(service) == 0, "no relay ever read it"
    confirm(service)
    assert await maintain(service) == 0, "a writer is still at work in it"
    held.commit()
    held.close()
    assert await maintain(service) == 0, "the late row is not confirmed"
    confirm(service)
    assert await maintain(service, timedelta(days=30)) == 0, "the replay window is longer"
    assert await maintain(service) == 1
    assert part not in partitions(service)
    assert stored(service) == []


async def test_old_rows_of_the_default_partition_go_once_confirmed(service: Service) -> None:
    ancient = datetime.now(UTC) - timedelta(days=4000)
    async with transaction(service) as connection:
        await outbox.add(connection, [Envelope("t", "k:k", "e", 1, b"", "s", "ancient", occurred_at=ancient)])
    confirm(service)
    async with transaction(service) as connection:
        await outbox.add(connection, [Envelope("t", "k:k", "e", 1, b"", "s", "unread", occurred_at=ancient)])
    await maintain(service)
    assert stored(service) == [("unread",)]


async def test_maintenance_does_not_hold_writers_up(service: Service) -> None:
    """A reader sits on the table: the drop gives up within its lock timeout and others go on."""
    part = old_partition(service)
    confirm(service)
    with service.connect(autocommit=False) as reader, service.connect() as writer:
        reader.execute("SELECT count(*) FROM outbox")
        assert await maintain(service) == 0
        write(writer, "t", "goes on")
        reader.rollback()
    assert part in partitions(service)
    assert await maintain(service) == 1


async def test_a_write_costs_what_it_did_after_many_rows(service: Service) -> None:
    """The trigger looks at one row and one lock, however much waits: compared within this run."""

    def cost() -> float:
        with service.connect() as writer:
            best = float("inf")
            for _ in range(50):
                started = clock()
                write(writer, "t", "x")
                best = min(best, clock() - started)
            return best

    cost()
    before = cost()
    fill(service, "t", 50_000)
    assert cost() < 3 * before + 0.001


def test_a_statement_that_does_not_name_its_time_once_is_refused() -> None:
    """Where it is imported: rows and events with different times would go unnoticed."""
    for insert in (outbox.INSERT, outbox.INSERT_ALIKE, outbox.INSERT_ONE):
        assert "clock_timestamp()" in insert
        assert outbox.stamped(insert, "now()") == insert.replace("clock_timestamp()", "now()")
    for reworded in ("INSERT INTO outbox SELECT now()", f"{outbox.INSERT_ONE}, clock_timestamp()"):
        with pytest.raises(ValueError, match="exactly once"):
            outbox.stamped(reworded, "now()")
