"""A worker's sign of life, on a real Postgres."""

import asyncio
from typing import LiteralString

import pytest
from psycopg import AsyncConnection, OperationalError
from psycopg.conninfo import make_conninfo

from messaging.database import Pool
from messaging.errors import Outage
from messaging.presence import BEAT_SECONDS, Presence
from tests.fixtures.stack import Database
from tests.messaging.harness import until

LOCK = "'ledger_workers'::regclass::oid::int"


async def test_a_worker_whose_lost_connection_still_holds_its_lock_goes_on_beating(
    database: Database, ledger_pool: Pool
) -> None:
    presence = Presence(database.conninfo, "reader")
    worker = await presence.open()
    with database.connect() as other:

        def holder() -> object:
            row = other.execute(
                "select pid from pg_locks where locktype = 'advisory' and granted and objid = %s and objsubid = 2"
                " and classid = 'ledger_workers'::regclass::oid",
                [worker],
            ).fetchone()
            return row and row[0]

        def beats() -> object:
            row = other.execute("select beat_at from ledger_workers where id = %s", [worker]).fetchone()
            return row and row[0]

        first = holder()
        assert first is not None
        other.execute("select pg_terminate_backend(%s)", [first])
        # From here on the test's own connection plays the one that the server has not noticed to be lost.
        other.execute(f"select pg_advisory_lock({LOCK}, %s)", [worker])
        mine = other.info.backend_pid
        seen: set[object] = set()

        def beats_go_on() -> bool:
            seen.add(beats())
            return len(seen) > 2

        await until(beats_go_on, 30, "beats without the lock")
        assert holder() == mine
        assert presence.fresh()
        other.execute(f"select pg_advisory_unlock({LOCK}, %s)", [worker])
        await until(lambda: holder() not in (None, mine, first), 30, "the lock is taken again")
        await asyncio.sleep(BEAT_SECONDS)
        assert presence.fresh()
    await presence.close()


@pytest.mark.parametrize("fault", [OperationalError("gone"), RuntimeError("a fault of ours")])
@pytest.mark.usefixtures("ledger_pool")
async def test_a_start_that_breaks_off_leaves_neither_a_connection_nor_a_worker(
    database: Database, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    presence = Presence(make_conninfo(database.conninfo, application_name="breaks-off"), "breaks-off")
    say_alive, faults = presence._say_alive, [fault]

    async def breaks_off(connection: AsyncConnection) -> None:
        await say_alive(connection)
        if faults:
            raise faults.pop()

    monkeypatch.setattr(presence, "_say_alive", breaks_off)
    with database.connect() as other:

        def count(query: LiteralString) -> object:
            row = other.execute(query).fetchone()
            return row and row[0]

        def connections() -> object:
            return count("select count(*) from pg_stat_activity where application_name = 'breaks-off'")

        def workers() -> object:
            return count("select count(*) from ledger_workers where consumer = 'breaks-off'")

        with pytest.raises(Outage if isinstance(fault, OperationalError) else RuntimeError):
            await presence.open()
        await until(lambda: connections() == 0, 30, "its connection is closed")
        assert workers() == 0
        # As `waited_out` tries it again.
        await presence.open()
        assert (connections(), workers()) == (1, 1)
        locks = "select count(*) from pg_locks join ledger_workers on objid = id and consumer = 'breaks-off' where "
        assert count(locks + "locktype = 'advisory' and classid = 'ledger_workers'::regclass::oid") == 1
        await presence.close()
