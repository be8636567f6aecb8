"""The jobs on the real database, each run by hand: who waits for whom, and what is sent no more."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import NotRetryable
from messaging.job import Job
from messaging.message import Key, new_id
from schemas.events import NotificationDeliveryRequested
from services.notifications.channels import RECEIVER_GONE, Channels
from services.notifications.handlers import Deliver, Tell
from services.notifications.records import Owner
from services.notifications.store import inbox, outgoing
from services.notifications.turns import Turns
from tests.fixtures.processes import Home
from tests.messaging.harness import until
from tests.notifications.conftest import request
from tests.notifications.test_feed import notice


@pytest.fixture
async def few(home: Home) -> AsyncIterator[Pool]:
    """A pool that one tenant's jobs could take as a whole."""
    async with AsyncConnectionPool(home.conninfo, min_size=1, max_size=4, timeout=60, open=False) as pool:
        yield pool


def job(pool: Pool, key: Key, event: object) -> Job:
    async def finish(_: Connection) -> bool:
        return True

    return Job(str(new_id()), 0, key, 1, event, {}, pool=pool, finish=finish)


def waiting(home: Home) -> int:
    """How many connections of the service wait for a lock."""
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and usename = %s"
    return int(str(home.rows(waits, home.name)[0][0]))


async def test_a_tenant_whose_feed_is_held_leaves_connections_to_the_others(
    home: Home, few: Pool, codec: Codec, tenant: str
) -> None:
    tell = Tell(codec, lambda tenant: None)
    quiet = f"{tenant}-quiet"
    async with await psycopg.AsyncConnection.connect(home.admin) as holder:
        await holder.execute("insert into feeds values (%s, 0)", (tenant,))
        held = [
            asyncio.create_task(tell.run(job(few, Key(tenant, f"s{number}"), request(tenant, f"s{number}"))))
            for number in range(20)
        ]
        await until(lambda: waiting(home) >= 2)
        await asyncio.wait_for(tell.run(job(few, Key(quiet, "ann"), request(quiet, "ann"))), 30)
        assert not any(task.done() for task in held)
    await asyncio.wait_for(asyncio.gather(*held), 60)
    counted = "select count(*) from notifications where tenant = %s"
    assert (home.rows(counted, tenant), home.rows(counted, quiet)) == ([(20,)], [(1,)])


async def test_turns_are_taken_in_order_and_forgotten() -> None:
    turns, order, most = Turns(2), [], 0
    running = 0

    async def take(number: int) -> None:
        nonlocal running, most
        async with turns.turn("a"):
            order.append(number)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

    tasks = [asyncio.create_task(take(number)) for number in range(10)]
    await asyncio.sleep(0)
    tasks[7].cancel()
    async with turns.turn("b"):
        assert turns.names == 2
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (order, most, turns.names) == ([0, 1, 2, 3, 4, 5, 6, 8, 9], 2, 0)


async def delivery(pool: Pool, tenant: str) -> tuple[UUID, UUID]:
    """One of Ann's that waits; its id and its subscription's."""
    async with pool.connection() as conn:
        made = await outgoing.subscribe(
            conn,
            Owner(tenant, "person", "ann"),
            "webhook",
            "https://workbot.invalid/",
            "s",
            ["document_approved"],
            "ann",
        )
        assert made is not None
        (queued,) = await outgoing.queue(
            conn, await inbox.add(conn, str(uuid.uuid4()), [notice(tenant, "news")], "ann")
        )
    return queued.id, made.id


def delivering(pool: Pool, tenant: str, one: UUID) -> Job:
    event = NotificationDeliveryRequested(delivery_id=str(one), tenant=tenant, sender="ann", channel="webhook")
    return job(pool, Key(tenant, "ann"), event)


async def test_nothing_goes_to_a_receiver_that_is_gone(home: Home, pool: Pool, tenant: str) -> None:
    """What was queued before its subscription was disabled ends, and says why. There is no channel to send it by."""
    one, _ = await delivery(pool, tenant)
    async with pool.connection() as conn:
        await outgoing.disable(conn, one)
    await Deliver(pool, Channels({})).run(delivering(pool, tenant, one))
    said = "select state, error from deliveries where id = %s"
    assert home.rows(said, one) == [("failed", "Its subscription was disabled before.")]

    two, _ = await delivery(pool, f"{tenant}-b")
    home.change("delete from subscriptions where tenant = %s", f"{tenant}-b")
    await Deliver(pool, Channels({})).run(delivering(pool, f"{tenant}-b", two))
    assert home.rows(said, two) == [("failed", "Its subscription was removed before.")]


async def test_giving_up_and_unsubscribing_at_once_is_no_deadlock(home: Home, pool: Pool, tenant: str) -> None:
    """Somebody holds the delivery, so both wait in the middle, giving up first in line."""
    one, subscription = await delivery(pool, tenant)
    gone = NotRetryable("It is gone.", RECEIVER_GONE)

    async def give_up() -> None:
        async with pool.connection() as conn:
            await Deliver(pool, Channels({})).gave_up(conn, delivering(pool, tenant, one), gone, 1)

    async def unsubscribe() -> None:
        async with pool.connection() as conn:
            assert await outgoing.unsubscribe(conn, tenant, "ann", subscription, teams=False)

    async with await psycopg.AsyncConnection.connect(home.admin) as holder:
        await holder.execute("select from deliveries where id = %s for update", (one,))
        first = asyncio.create_task(give_up())
        await until(lambda: waiting(home) == 1)
        second = asyncio.create_task(unsubscribe())
        await until(lambda: waiting(home) == 2)
    await asyncio.wait_for(asyncio.gather(first, second), 60)
    assert home.rows("select state, subscription from deliveries where id = %s", one) == [("failed", None)]
