"""What is erased, what is left alone, and that nobody who did not know of an erasure can write past it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Held
from messaging.message import TIME, Key
from tests.fixtures.outbox import Service, migrated, write
from tests.fixtures.stack import Database

ANN = Key("acme", "ann")
LATER = datetime(2222, 2, 2, tzinfo=UTC)
OTHERS = (Key("acme", "bob"), Key("other", "ann"), Key("acme", "anna"), Key("acm", "ann"))


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


@asynccontextmanager
async def connected(conninfo: str) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
        yield conn


def fill(service: Service, owner: Key, each: int) -> None:
    """So many events, refused events and runs of a sender's."""
    with service.connect() as connection:
        write(connection, "t", *(str(n) for n in range(each)), key=str(owner))
    service.execute(
        "INSERT INTO outbox_refused"
        " (seq, id, topic, key, type, version, payload, source, subject, occurred_at, error)"
        " SELECT s + (SELECT count(*) FROM outbox_refused), gen_random_uuid(), 't', %s, 'e', 1, '', 's', 's', now(),"
        " 'too large' FROM generate_series(1, %s) AS s",
        str(owner),
        each,
    )
    service.execute(
        "INSERT INTO ledger_attempts (consumer, message_id, generation, attempt, tenant, sender, worker, ready_at,"
        " started_at, finished_at, outcome) SELECT 'c', n::text, 0, 1, %s, %s, 1, now(), now(), now(), 'done'"
        " FROM generate_series(1, %s) AS n",
        owner.tenant,
        owner.sender,
        each,
    )


async def test_what_every_service_keeps_of_one_sender_goes_and_nothing_else(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of ten, of which the last is full, short or empty; an event that was not sent yet goes, too."""
    monkeypatch.setattr(erasure, "BATCH", 10)
    kinds = [held.kind for held in erasure.OURS]
    fill(service, ANN, 25)
    for other in OTHERS:
        fill(service, other, 3)
    told: dict[str, int] = dict.fromkeys(kinds, 0)

    def tell(kind: str, more: int) -> None:
        told[kind] += more

    async with connected(service.owner_conninfo) as conn:
        assert await erasure.count(conn, erasure.OURS, ANN) == dict.fromkeys(kinds, 25)
        assert await erasure.erase(conn, erasure.OURS, ANN, LATER, tell) == dict.fromkeys(kinds, 25)
        assert told == dict.fromkeys(kinds, 25)
        assert await erasure.erase(conn, erasure.OURS, ANN, LATER, tell) == dict.fromkeys(kinds, 0)
        for other in OTHERS:
            assert await erasure.count(conn, erasure.OURS, other) == dict.fromkeys(kinds, 3)


async def test_what_is_written_after_the_moment_stays(service: Service) -> None:
    kinds = [held.kind for held in erasure.OURS]
    async with connected(service.owner_conninfo) as conn:
        fill(service, ANN, 3)
        moment = await erasure.moment(conn)
        fill(service, ANN, 2)
        assert await erasure.count(conn, erasure.OURS, ANN, moment) == dict.fromkeys(kinds, 3)
        assert await erasure.erase(conn, erasure.OURS, ANN, moment, lambda kind, more: None) == dict.fromkeys(
            kinds, 3
        )
        assert await erasure.count(conn, erasure.OURS, ANN) == dict.fromkeys(kinds, 2)


async def test_who_was_writing_is_waited_for_and_nobody_else_is(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction's event happened before the moment, and is committed after it; another writes all the while."""
    async with connected(service.owner_conninfo) as conn:
        await erasure.await_writers(conn)
        with service.connect(autocommit=False) as slow, service.connect(autocommit=False) as later:
            write(slow, "t", "slow", key=str(ANN))
            moment = await erasure.moment(conn)
            looked, look = asyncio.Event(), erasure._writing

            async def looking(connection: Connection, tables: Sequence[str]) -> set[str]:
                found = await look(connection, tables)
                looked.set()
                return found

            monkeypatch.setattr(erasure, "_writing", looking)
            waiting = asyncio.create_task(erasure.await_writers(conn))
            await looked.wait()
            write(later, "t", "later", key=str(ANN))
            assert not waiting.done()
            slow.commit()
            async with asyncio.timeout(10):
                await waiting
            gone = await erasure.erase(conn, erasure.OURS, ANN, moment, lambda kind, more: None)
            assert gone["events in the outbox"] == 1
            later.commit()
            assert service.execute("SELECT subject FROM outbox") == [("later",)]
            write(slow, "t", "open", key=str(ANN))
            monkeypatch.setattr(erasure, "PATIENCE", timedelta(seconds=0.2))
            with pytest.raises(erasure.Busy, match="a transaction that writes into outbox has been open"):
                await erasure.await_writers(conn)


async def test_a_break_in_the_middle_loses_nothing_but_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "BATCH", 10)
    fill(service, ANN, 25)
    runs = [held for held in erasure.OURS if held.kind == "runs of jobs"]

    def break_off(kind: str, more: int) -> None:
        raise KeyboardInterrupt

    async with connected(service.owner_conninfo) as conn:
        with pytest.raises(KeyboardInterrupt):
            await erasure.erase(conn, runs, ANN, LATER, break_off)
        assert await erasure.count(conn, runs, ANN) == {"runs of jobs": 15}
        assert await erasure.erase(conn, runs, ANN, LATER, lambda kind, more: None) == {"runs of jobs": 15}


async def test_an_erasure_is_known_from_then_on_and_forgotten_in_the_end(service: Service) -> None:
    async with connected(service.owner_conninfo) as owner, connected(service.conninfo) as conn:
        assert await erasure.when(conn, [ANN, *OTHERS]) == {}
        now = await erasure.moment(owner)
        # The later counts, whichever comes last; who marks learns of it.
        for seconds, holds in ((5, 5), (10, 10), (0, 10)):
            assert await erasure.mark(owner, ANN, now + timedelta(seconds=seconds)) == now + timedelta(seconds=holds)
        assert await erasure.when(conn, [ANN, *OTHERS]) == {ANN: now + timedelta(seconds=10)}
        assert "ann" not in str(service.execute("SELECT * FROM erasures"))
        service.execute("UPDATE erasures SET erased_at = now() - interval '9 days'")
        assert await erasure.forget(conn, 10 * 86_400) == 0
        assert await erasure.forget(conn, 8 * 86_400) == 1
        assert await erasure.when(conn, [ANN]) == {}


async def test_the_service_itself_can_mark_nobody(service: Service) -> None:
    async with connected(service.conninfo) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await erasure.mark(conn, ANN, LATER)


async def test_rows_of_who_did_not_know_are_there_when_the_erasing_begins(service: Service) -> None:
    """A transaction asks, and is then slow: the mark waits for it; one that asks later knows."""
    service.execute("CREATE TABLE things (tenant text, sender text)")
    service.execute("GRANT ALL ON things TO PUBLIC")
    things = Held(
        "things",
        "select count(*) from things where tenant = %(tenant)s and sender = %(sender)s",
        "delete from things where tenant = %(tenant)s and sender = %(sender)s",
    )
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def write_slowly() -> None:
        async with connected(service.conninfo) as conn, conn.transaction():
            assert await erasure.when(conn, [ANN]) == {}
            asked.set()
            await go_on.wait()
            await conn.execute("INSERT INTO things VALUES ('acme', 'ann')")

    async def write_if_allowed() -> bool:
        async with connected(service.conninfo) as conn, conn.transaction():
            if await erasure.when(conn, [ANN]):
                return False
            await conn.execute("INSERT INTO things VALUES ('acme', 'ann')")
        return True

    async def erase() -> int:
        async with connected(service.owner_conninfo) as conn:
            await erasure.mark(conn, ANN, LATER)
            return (await erasure.erase(conn, [things], ANN, LATER, lambda kind, more: None))["things"]

    async def waiting_for_locks(count: int) -> None:
        query = (
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
            " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
        )
        async with asyncio.timeout(30):
            while service.execute(query) != [(count,)]:
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        slow = group.create_task(write_slowly())
        await asked.wait()
        erasing = group.create_task(erase())
        await waiting_for_locks(1)
        late = group.create_task(write_if_allowed())
        await waiting_for_locks(2)
        assert not erasing.done()
        async with asyncio.timeout(5), connected(service.conninfo) as conn, conn.transaction():
            assert await erasure.when(conn, [Key("acme", "ben")]) == {}, "nobody else waits"
        go_on.set()
        await slow
    assert await late is False
    assert await erasing == 1
    assert service.execute("SELECT count(*) FROM things") == [(0,)]


async def test_a_backup_holds_no_mark_up(service: Service) -> None:
    with service.connect(autocommit=False) as backup:
        backup.execute("LOCK TABLE erasures IN ACCESS SHARE MODE")
        async with asyncio.timeout(5), connected(service.owner_conninfo) as conn:
            await erasure.mark(conn, ANN, LATER)


def test_what_happened_before_is_told_by_the_records_own_time() -> None:
    now = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
    for said, before in (
        (now.isoformat(), True),
        ((now - timedelta(seconds=1)).isoformat(), True),
        ((now + timedelta(seconds=1)).isoformat(), False),
        ("2026-05-04T14:00:00+02:00", True),
        ("2026-05-04T14:00:01+02:00", False),
        ("2026-05-04T12:00:00Z", True),
        ("2026-05-04T13:00:00", True),  # no zone
        ("soon", True),
        ("", True),
    ):
        assert erasure.before(now, {TIME: said.encode()}) is before, said
    assert erasure.before(now, {})
    assert erasure.before(now, {TIME: b"\xff"})
