"""The pool of a process: of use again as soon as the server is."""

import asyncio
import time
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout

from messaging.database import Pool, is_outage, make_pool, may_be_done
from messaging.settings import ProcessSettings
from tests.fixtures.outbox import Proxy
from tests.fixtures.stack import Database

AWAY_SECONDS = 9.0
"""Tries 1, 3, 7 and 15 s after the cut, as the library makes them, would leave it without a server until 15 s."""


@pytest.fixture
async def cuttable(database: Database) -> AsyncIterator[tuple[Pool, Proxy]]:
    told = conninfo_to_dict(database.conninfo)
    proxy = Proxy(f"{told['host']}:{told['port']}", kafka=False)
    host, port = proxy.address.rsplit(":", 1)
    settings = ProcessSettings(database_url=make_conninfo(database.conninfo, host=host, port=port, hostaddr=""))
    pool = make_pool(settings, "test", autocommit=True)
    await pool.open(wait=True)
    yield pool, proxy
    await pool.close()
    proxy.close()


async def answers(pool: Pool, patience: float) -> bool:
    try:
        async with pool.connection(patience) as conn:
            await conn.execute("select 1")
    except (psycopg.Error, PoolTimeout):
        return False
    return True


async def test_a_server_that_was_away_is_found_again_at_once(cuttable: tuple[Pool, Proxy]) -> None:
    pool, proxy = cuttable
    assert await answers(pool, 10)
    proxy.cut()
    cut_at = time.monotonic()
    while time.monotonic() < cut_at + AWAY_SECONDS:
        assert not await answers(pool, 0.5)
    proxy.heal()
    healed_at = time.monotonic()
    async with asyncio.timeout(60):
        while not await answers(pool, 0.5):
            pass
    assert time.monotonic() - healed_at < (healed_at - cut_at) / 2


async def test_who_stood_still_in_a_transaction_has_lost_the_connection_and_what_it_did(database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.conninfo) as conn:
        await conn.execute("create table unfinished ()")
        await conn.execute("set idle_in_transaction_session_timeout = '50ms'")
        await asyncio.sleep(0.5)
        with pytest.raises(psycopg.Error) as ended:
            await conn.execute("select 1")
        assert is_outage(ended.value)
        assert not may_be_done(ended.value)
    with database.connect() as other:
        assert other.execute("select to_regclass('unfinished')").fetchone() == (None,)
