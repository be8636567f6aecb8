"""The ledger on a real database: starts, the fence, strikes, who is dead."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest_asyncio

from messaging.database import Pool
from messaging.ledger import Found, Ledger, Start, clean
from messaging.presence import Presence
from tests.fixtures.stack import Database


@pytest_asyncio.fixture
async def present(database: Database, ledger_pool: Pool) -> AsyncIterator[list[Presence]]:
    """Two live workers."""
    workers = [Presence(database.conninfo, "reader") for _ in range(2)]
    for worker in workers:
        await worker.open()
    yield workers
    for worker in workers:
        await worker.close()


async def begin(ledger_pool: Pool, ledger: Ledger, *starts: Start) -> list[Found]:
    async with ledger_pool.connection() as conn:
        return [grant.found for grant in await ledger.begin(conn, starts)]


async def silence(database: Database, worker: int, seconds: float) -> None:
    """Make a worker's last heartbeat look older."""
    with database.connect() as conn:
        conn.execute(
            "update ledger_workers set beat_at = beat_at - make_interval(secs => %s) where id = %s", (seconds, worker)
        )


async def test_a_job_starts_once_and_its_repeat_finds_it_done(ledger_pool: Pool, present: list[Presence]) -> None:
    ledger = Ledger("reader", present[0].worker)
    async with ledger_pool.connection() as conn:
        [grant] = await ledger.begin(conn, [Start("a", 0)])
        assert (grant.found, grant.failures, grant.strikes) == (Found.GRANTED, 0, 0)
        assert await ledger.finish(conn, "a", 0, grant.token)
        assert not await ledger.finish(conn, "a", 0, grant.token), "done is done"
    assert await begin(ledger_pool, ledger, Start("a", 0), Start("a", 1)) == [Found.DONE, Found.GRANTED]
    other_consumer = Ledger("notifier", present[0].worker)
    assert await begin(ledger_pool, other_consumer, Start("a", 0)) == [Found.GRANTED]


async def test_a_job_that_a_live_worker_runs_is_busy_for_another(ledger_pool: Pool, present: list[Presence]) -> None:
    first, second = (Ledger("reader", worker.worker) for worker in present)
    assert await begin(ledger_pool, first, Start("a", 0)) == [Found.GRANTED]
    assert await begin(ledger_pool, second, Start("a", 0), Start("b", 0)) == [Found.BUSY, Found.GRANTED]


async def test_a_worker_that_died_leaves_suspects_and_they_run_alone(
    ledger_pool: Pool, present: list[Presence], database: Database
) -> None:
    first, second = (Ledger("reader", worker.worker) for worker in present)
    assert await begin(ledger_pool, first, Start("a", 0), Start("b", 0)) == [Found.GRANTED] * 2
    await present[0].close()
    assert await begin(ledger_pool, second, Start("a", 0)) == [Found.BUSY], "its lock is gone, its last beat is fresh"
    await silence(database, first.worker, 3.0)
    async with ledger_pool.connection() as conn:
        grants = await second.begin(conn, [Start("a", 0), Start("b", 0)])
    assert [(g.found, g.strikes) for g in grants] == [(Found.SUSPECT, 1), (Found.SUSPECT, 1)]
    assert await begin(ledger_pool, second, Start("a", 0)) == [Found.SUSPECT], "asking again is no second strike"
    async with ledger_pool.connection() as conn:
        [grant] = await second.begin(conn, [Start("a", 0, alone=True)])
        assert (grant.found, grant.failures, grant.strikes) == (Found.GRANTED, 0, 1)
        assert await second.finish(conn, "a", 0, grant.token)


async def test_a_frozen_worker_keeps_its_lock_and_loses_its_jobs(
    ledger_pool: Pool, present: list[Presence], database: Database
) -> None:
    """Only the heartbeat tells that it is frozen; when it thaws, its token is worth nothing."""
    first, second = (Ledger("reader", worker.worker) for worker in present)
    async with ledger_pool.connection() as conn:
        [old] = await first.begin(conn, [Start("a", 0)])
    present[0]._task.cancel()  # type: ignore[union-attr]
    await silence(database, first.worker, 60.0)
    async with ledger_pool.connection() as conn:
        [seen] = await second.begin(conn, [Start("a", 0)])
        assert seen.found is Found.SUSPECT
        [new] = await second.begin(conn, [Start("a", 0, alone=True)])
        for write in (
            first.finish(conn, "a", 0, old.token),
            first.retry(conn, "a", 0, old.token, 1.0),
            first.dead(conn, "a", 0, old.token, 1),
            first.holds(conn, "a", 0, old.token),
        ):
            assert not await write
        await first.release(conn, [("a", 0, old.token)])
        assert await first.finish_many(conn, [("a", 0, old.token)]) == set()
        assert await second.finish(conn, "a", 0, new.token)


async def test_failures_count_and_a_retry_is_not_due_before_its_time(
    ledger_pool: Pool, present: list[Presence]
) -> None:
    ledger = Ledger("reader", present[0].worker)
    async with ledger_pool.connection() as conn:
        [grant] = await ledger.begin(conn, [Start("a", 0)])
        assert await ledger.retry(conn, "a", 0, grant.token, 0.5)
        [early] = await ledger.begin(conn, [Start("a", 0)])
        assert (early.found, early.failures) == (Found.NOT_DUE, 1)
        assert 0 < early.wait_seconds <= 0.5
        [waited] = await ledger.begin(conn, [Start("a", 0, due=True)])
        assert (waited.found, waited.failures) == (Found.GRANTED, 1)
        assert await ledger.retry(conn, "a", 0, waited.token, 0.1)
    await asyncio.sleep(0.15)
    assert await begin(ledger_pool, ledger, Start("a", 0)) == [Found.GRANTED]


async def test_what_was_given_back_starts_again_uncharged(ledger_pool: Pool, present: list[Presence]) -> None:
    first, second = (Ledger("reader", worker.worker) for worker in present)
    async with ledger_pool.connection() as conn:
        grants = await first.begin(conn, [Start(str(n), 0) for n in range(20)])
        await first.release(conn, [(str(n), 0, grant.token) for n, grant in enumerate(grants)])
        again = await second.begin(conn, [Start(str(n), 0) for n in range(20)])
    assert {(g.found, g.failures, g.strikes) for g in again} == {(Found.GRANTED, 0, 0)}


async def test_a_thousand_starts_and_ends_in_two_statements(ledger_pool: Pool, present: list[Presence]) -> None:
    ledger = Ledger("reader", present[0].worker)
    async with ledger_pool.connection() as conn:
        grants = await ledger.begin(conn, [Start(f"job-{n}", 0) for n in range(1000)])
        runs = [(f"job-{n}", 0, grant.token) for n, grant in enumerate(grants)]
        assert len({token for _, _, token in runs}) == 1000
        assert await ledger.finish_many(conn, runs) == {token for _, _, token in runs}


async def test_two_workers_that_begin_the_same_jobs_at_once_share_them_out(
    ledger_pool: Pool, present: list[Presence]
) -> None:
    ledgers = [Ledger("reader", worker.worker) for worker in present]
    for round_number in range(20):
        starts = [Start(f"{round_number}-{n}", 0) for n in range(30)]
        found = await asyncio.gather(*(begin(ledger_pool, ledger, *starts) for ledger in ledgers))
        for one, two in zip(*found, strict=True):
            assert sorted([one.value, two.value]) == ["busy", "granted"]


async def test_old_pages_are_dropped_and_open_ones_kept(
    ledger_pool: Pool, present: list[Presence], database: Database
) -> None:
    ledger = Ledger("reader", present[0].worker)
    async with ledger_pool.connection() as conn:
        grants = await ledger.begin(conn, [Start(name, 0) for name in ("done", "open", "new")])
        await ledger.finish(conn, "done", 0, grants[0].token)
    with database.connect() as sync:
        sync.execute("update ledger set updated_at = updated_at - interval '10 days' where message_id <> 'new'")
    async with ledger_pool.connection() as conn:
        assert await clean(conn, 7 * 86400, 100) == 1
        rows = await (await conn.execute("select message_id from ledger order by 1")).fetchall()
    assert rows == [("new",), ("open",)]


async def test_a_cleaning_takes_no_more_than_it_is_told(
    ledger_pool: Pool, database: Database, present: list[Presence]
) -> None:
    """Rows and attempts together; what is left is taken by the next."""
    ledger = Ledger("reader", present[0].worker)
    async with ledger_pool.connection() as conn:
        grants = await ledger.begin(conn, [Start(f"m{number}", 0) for number in range(5)])
        for number, grant in enumerate(grants):
            await ledger.finish(conn, f"m{number}", 0, grant.token)
    with database.connect() as sync:
        sync.execute("update ledger set updated_at = updated_at - interval '10 days'")
        sync.execute(
            "insert into ledger_attempts select 'reader', 'm0', 0, 1, 't', 's', null, 1, at, at, at, 'done'"
            " from (values (now() - interval '10 days'), (now())) as moments(at)"
        )
    for expected in (4, 2, 0):
        async with ledger_pool.connection() as conn:
            assert await clean(conn, 7 * 86400, 4) == expected


async def test_a_worker_is_fresh_while_it_beats(present: list[Presence], database: Database) -> None:
    assert present[0].fresh()
    with psycopg.connect(database.conninfo, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    await asyncio.sleep(2.5)
    assert present[0].fresh(), "it takes its lock again after the connection was lost"
    with database.connect() as conn:
        held = conn.execute(
            "select count(*) from pg_locks join pg_database on pg_database.oid = database"
            " where datname = current_database() and locktype = 'advisory' and granted"
        ).fetchone()
    assert held == (2,)
