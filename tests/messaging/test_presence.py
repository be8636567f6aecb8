"""A worker's sign of life, on a real Postgres."""

import asyncio

from messaging.database import Pool
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
