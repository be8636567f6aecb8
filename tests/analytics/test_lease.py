"""The lease on the real database: a lost connection is had again, a lost lock ends the process."""

import asyncio
import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from messaging.database import Connection
from services.analytics import lease, store
from services.analytics.lease import Lease, LostLease
from tests.analytics.conftest import Place, Start, request, until
from tests.fixtures.processes import Home

_HOLDER = "select pid from pg_locks where locktype = 'advisory' and granted and classid = %s and database ="
_HOLDER += " (select oid from pg_database where datname = current_database())"


def terminate(home: Home) -> None:
    """End the connection of whoever has the lock."""
    ((pid,),) = home.rows(_HOLDER, lease._LOCK_CLASS)
    home.change("select pg_terminate_backend(%s)", pid)


@contextlib.contextmanager
def claimant(home: Home, group: str) -> Iterator[None]:
    """Somebody who has the lock as soon as nobody else has: it stands in line for it."""
    key = Lease("", group)._key
    with contextlib.closing(psycopg.connect(home.admin, autocommit=True)) as waiting:
        waiting.pgconn.send_query(f"select pg_advisory_lock({lease._LOCK_CLASS}, {key})".encode())
        until(lambda: home.rows("select 1 from pg_locks where locktype = 'advisory' and not granted") != [])
        yield


async def ask(conn: Connection) -> bool:
    return await store.answers(conn)


async def test_a_lost_connection_is_had_again(home: Home) -> None:
    ours = Lease(home.conninfo, "g")
    await ours.take()
    terminate(home)
    assert await ours.run(ask)
    assert len(home.rows(_HOLDER, lease._LOCK_CLASS)) == 1
    await ours.close()
    assert home.rows(_HOLDER, lease._LOCK_CLASS) == []


async def test_who_finds_another_in_its_place_does_nothing_more(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "REGAIN_SECONDS", 0.5)
    ours = Lease(home.conninfo, "g")
    await ours.take()
    with claimant(home, "g"):
        terminate(home)
        with pytest.raises(LostLease):
            await ours.run(ask)
    await ours.close()


async def test_an_outage_does_not_keep_it_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "CLOSE_SECONDS", 0.1)
    ours = Lease("host=127.0.0.1 port=1 dbname=none", "g")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ours.run(ask), 0.2)
    await asyncio.wait_for(ours.close(), 30)


def test_a_process_that_lost_its_lease_ends(place: Place, start: Start, home: Home) -> None:
    """Its connection is cut and another one has the lock: it counts nothing more, and ends for a fault."""
    with start(faulty=True) as counter:
        place.send([request(1)])
        until(lambda: counter.total() == 1, counter)
        with claimant(home, place.group):
            terminate(home)
            place.send([request(2)])
            until(lambda: counter.process.poll() is not None)
        assert "LostLease" in counter.log.read_text()
    with start() as counter:
        until(lambda: counter.total() == 2, counter)
