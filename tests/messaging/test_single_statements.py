"""Statements that are transactions of their own, on connections that go back to the pool as they were."""

import asyncio
from collections.abc import AsyncIterator

import psycopg.waiting
import pytest
from psycopg import ProgrammingError
from psycopg_pool import AsyncConnectionPool

from messaging.database import Pool, single_statements
from tests.fixtures.stack import Database


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    async with AsyncConnectionPool(database.conninfo, min_size=1, max_size=1, open=False) as pool:
        await pool.wait()
        async with pool.connection() as conn:
            await conn.execute("create table t (n int)")
        yield pool


async def usable(pool: Pool) -> bool:
    """Whether the one connection is lent in transactions again."""
    async with pool.connection() as conn:
        await conn.execute("select 1")
        return not conn.autocommit


async def test_the_connection_goes_back_as_it_was(pool: Pool) -> None:
    async with single_statements(pool) as conn:
        await conn.execute("insert into t values (1)")
    assert await usable(pool)


async def test_a_cancelled_copy_stays_cancelled(pool: Pool) -> None:
    """As when a process stops: the task must end, or whoever stops it waits for ever."""
    began = asyncio.Event()

    async def copy() -> None:
        async with single_statements(pool) as conn, conn.cursor().copy("copy t from stdin") as writing:
            await writing.write_row((1,))
            began.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(copy())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert await usable(pool)


@pytest.mark.parametrize("busy", [False, True], ids=["idle loop", "busy loop"])
@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_point_it_stays_cancelled(
    pool: Pool, turns: int, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many turns of the loop, wherever that is. On a busy loop psycopg lets others run after each step."""
    if busy:
        monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", 0.0)

    async def copy() -> None:
        while True:
            async with single_statements(pool) as conn, conn.cursor().copy("copy t from stdin") as writing:
                for _ in range(10):
                    await writing.write_row((1,))

    task = asyncio.create_task(copy())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert await usable(pool)


async def test_a_failed_statement_raises_what_it_is(pool: Pool) -> None:
    with pytest.raises(ProgrammingError, match="nothing"):
        async with single_statements(pool) as conn:
            await conn.execute("select * from nothing")
    assert await usable(pool)
