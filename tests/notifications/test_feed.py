"""Following along: every notification once and in order, whatever commits when, whoever comes and goes."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from messaging.database import Connection, Pool
from services.notifications import bell
from services.notifications.api import stream
from services.notifications.bell import PAYLOAD_BYTES, Listener, Ringer, payloads
from services.notifications.feed import QUEUE, STREAMS, Closed, Dropped, Feed, Follower, TooMany
from services.notifications.notices import Notice
from services.notifications.records import Sight
from services.notifications.store import inbox
from tests.fixtures.processes import Home
from tests.messaging.harness import until


def notice(tenant: str, title: str, audience: str = "ann") -> Notice:
    return Notice(tenant, "person", audience, "document_approved", title, "", "/")


async def tell(conn: Connection, tenant: str, *titles: str, audience: str = "ann") -> None:
    for title in titles:
        assert await inbox.add(conn, str(uuid.uuid4()), [notice(tenant, title, audience)], "ann")


async def told(pool: Pool, tenant: str, *titles: str, audience: str = "ann") -> None:
    """A transaction for each."""
    for title in titles:
        async with pool.connection() as conn:
            await tell(conn, tenant, title, audience=audience)


async def take(follower: Follower, count: int) -> list[str]:
    """So many titles, the missed ones first."""
    found = [entry.title async for entry in follower.past()]
    while len(found) < count:
        entry = await follower.next(20.0)
        assert entry is not None, found
        found.append(entry.title)
    return found


@pytest.fixture
async def feed(pool: Pool, home: Home) -> AsyncIterator[Feed]:
    """A feed with its listener, as the process has it."""
    feed = Feed(pool)
    listener = Listener(home.conninfo, feed.wake)
    listener.start()
    yield feed
    feed.close()
    await listener.stop()


async def test_numbers_are_committed_in_their_order(home: Home, pool: Pool, tenant: str) -> None:
    """The first writer has drawn its number and is held, the second would commit at once. A cursor that has seen the
    second could never come back for the first; so the second has to wait."""
    async with await psycopg.AsyncConnection.connect(home.conninfo) as first:
        await tell(first, tenant, "held")
        second = asyncio.create_task(told(pool, tenant, "quick"))
        other = asyncio.create_task(told(pool, f"{tenant}-other", "not held"))
        await asyncio.wait_for(other, 20)
        assert not second.done()
        async with pool.connection() as conn:
            assert await inbox.head(conn, tenant) == 0
            assert await inbox.between(conn, tenant, 0, 2**62, 10) == []
        await first.commit()
    await asyncio.wait_for(second, 20)
    async with pool.connection() as conn:
        entries = await inbox.between(conn, tenant, 0, await inbox.head(conn, tenant), 10)
    assert [(entry.seq, entry.title) for entry in entries] == [(1, "held"), (2, "quick")]


async def test_a_process_that_stands_still_is_not_waited_for_for_ever(home: Home, pool: Pool, tenant: str) -> None:
    """It holds the row of the tenant's numbers; after a while its connection is ended, and what it wrote undone."""
    frozen = await psycopg.AsyncConnection.connect(home.conninfo)
    await tell(frozen, tenant, "never committed")
    await asyncio.wait_for(told(pool, tenant, "waited"), 30)
    with pytest.raises(psycopg.Error):
        await frozen.execute("select 1")
    await frozen.close()
    async with pool.connection() as conn:
        assert [entry.title for entry in await inbox.between(conn, tenant, 0, 10, 10)] == ["waited"]


async def test_a_follower_misses_nothing_that_commits_out_of_order(
    home: Home, pool: Pool, feed: Feed, tenant: str
) -> None:
    """Twelve writers, each with transactions that it holds open for different times, some of which it undoes; two
    followers, one of which comes and goes. Both get all that was committed, once, in one order."""
    ringer = Ringer(pool)
    ringer.start()
    expected: set[str] = set()

    async def write(writer: int) -> None:
        async with await psycopg.AsyncConnection.connect(home.conninfo) as conn:
            for number in range(12):
                title = f"{writer}-{number}"
                if (writer + number) % 3:
                    # Work before the number is drawn: who began first does not commit first.
                    await conn.execute("select pg_current_xact_id()")
                    await asyncio.sleep(0.002 * ((writer * 7 + number * 5) % 11))
                await tell(conn, tenant, title)
                await asyncio.sleep(0.001 * ((writer + number) % 4))
                if number % 5 == 4:
                    await conn.rollback()
                    continue
                await conn.commit()
                expected.add(title)
                ringer.ring(tenant)

    sight = Sight(tenant, "ann", staff=False)
    steady = await feed.follow(sight, None)
    restless: list[str] = []
    cursor = 0

    async def come_and_go() -> None:
        nonlocal cursor
        while len(restless) < 12 * 10:
            follower = await feed.follow(sight, cursor)
            restless.extend([entry.title async for entry in follower.past()])
            for _ in range(7):
                entry = await follower.next(0.3)
                if entry is not None:
                    restless.append(entry.title)
            cursor = follower.after
            feed.leave(follower)

    coming = asyncio.create_task(come_and_go())
    await asyncio.gather(*(write(writer) for writer in range(12)))
    await asyncio.wait_for(coming, 60)
    seen = await take(steady, len(expected))
    assert len(seen) == len(set(seen)) == 12 * 10
    assert set(seen) == expected
    assert restless == seen
    feed.leave(steady)
    await ringer.stop()
    assert feed.followers == 0


async def test_a_repeat_tells_nothing(pool: Pool, tenant: str) -> None:
    event = str(uuid.uuid4())
    both = [notice(tenant, "one"), notice(tenant, "two", "bob")]
    async with pool.connection() as conn:
        assert len(await inbox.add(conn, event, both[:1], "ann")) == 1
        assert [said.audience for _, said in await inbox.add(conn, event, both, "ann")] == ["bob"]
        assert await inbox.add(conn, event, both, "ann") == []


async def test_the_bell_wakes_whoever_follows(
    home: Home, pool: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sweep, so that nothing else can have done it; also after the listening connection was lost."""
    monkeypatch.setattr(bell, "SWEEP_SECONDS", 3600.0)
    feed, ringer = Feed(pool), Ringer(pool)
    woken: list[object] = []

    def wake(tenants: Iterable[str] | None) -> None:
        woken.append(tenants)
        feed.wake(tenants)

    listener = Listener(home.conninfo, wake)
    ringer.start()
    listener.start()
    await until(lambda: None in woken)
    follower = await feed.follow(Sight(tenant, "ann", staff=False), None)
    for title in ("rung", "rung again"):
        await told(pool, tenant, title)
        ringer.ring(tenant)
        assert await take(follower, 1) == [title]
        woken.clear()
        assert home.rows(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and query = 'LISTEN notifications'"
        ) == [(1,)]
        # What is told while nobody listens is found on coming back, though its ring was lost.
        await told(pool, tenant, f"{title}, unheard")
        assert await take(follower, 1) == [f"{title}, unheard"]
        await until(lambda: None in woken)
    feed.leave(follower)
    await ringer.stop()
    await listener.stop()


async def test_a_ring_that_never_came_is_made_good(pool: Pool, feed: Feed, tenant: str) -> None:
    follower = await feed.follow(Sight(tenant, "ann", staff=False), None)
    await told(pool, tenant, "nobody rang")
    assert await take(follower, 1) == ["nobody rang"]
    feed.leave(follower)


async def test_a_long_past_is_read_in_pages_and_goes_on_live(pool: Pool, feed: Feed, tenant: str) -> None:
    titles = [str(number) for number in range(450)]
    async with pool.connection() as conn:
        await tell(conn, tenant, *titles[:440])
        await tell(conn, tenant, "not for ann", audience="bob")
    follower = await feed.follow(Sight(tenant, "ann", staff=False), 0)
    past = follower.past()
    found = [(await anext(past)).title for _ in range(10)]
    await told(pool, tenant, *titles[440:])
    feed.wake([tenant])
    found += [entry.title async for entry in past]
    found += await take(follower, len(titles) - len(found))
    assert found == titles
    feed.leave(follower)


async def test_who_falls_behind_is_dropped_and_can_come_back(pool: Pool, feed: Feed, tenant: str) -> None:
    sight = Sight(tenant, "ann", staff=False)
    slow, quick = await feed.follow(sight, None), await feed.follow(sight, None)
    async with pool.connection() as conn:
        await tell(conn, tenant, "first")
    feed.wake([tenant])
    assert await take(slow, 1) == ["first"]
    assert await take(quick, 1) == ["first"]
    for _ in range(2):
        async with pool.connection() as conn:
            await tell(conn, tenant, *map(str, range(QUEUE // 2 + 10)))
        feed.wake(None)
        await take(quick, QUEUE // 2 + 10)
    with pytest.raises(Dropped):
        await slow.next(20.0)
    again = await feed.follow(sight, slow.after)
    assert len(await take(again, QUEUE + 20)) == QUEUE + 20
    for follower in (slow, quick, again):
        feed.leave(follower)


async def test_who_follows_a_team_is_given_nothing_else(pool: Pool, feed: Feed, tenant: str) -> None:
    """Neither of the past, which is read for them, nor of what comes, which is read for all."""
    sight = Sight(tenant, "ann", staff=True)

    async def tell_all(number: int) -> None:
        async with pool.connection() as conn:
            for kind, audience in (("team", "it"), ("team", "hr"), ("person", "ann"), ("person", "it")):
                said = Notice(tenant, kind, audience, "request_created", f"{kind} {audience} {number}", "", "/")
                assert await inbox.add(conn, str(uuid.uuid4()), [said], "ann")

    await tell_all(1)
    narrow, wide = await feed.follow(sight, 0, "it"), await feed.follow(sight, 0)
    await tell_all(2)
    feed.wake(None)
    assert len(await take(wide, 6)) == 6
    assert await take(narrow, 2) == ["team it 1", "team it 2"]
    assert await narrow.next(0.1) is None
    for follower in (narrow, wide):
        feed.leave(follower)


async def test_a_cursor_from_beyond_the_end_is_taken_for_the_end(pool: Pool, feed: Feed, tenant: str) -> None:
    await told(pool, tenant, "before")
    follower = await feed.follow(Sight(tenant, "ann", staff=False), 10**17)
    await told(pool, tenant, "after")
    feed.wake(None)
    assert await take(follower, 1) == ["after"]
    feed.leave(follower)


async def test_nobody_takes_all_streams(pool: Pool, feed: Feed, tenant: str) -> None:
    ann, bob = Sight(tenant, "ann", staff=False), Sight(tenant, "bob", staff=False)
    followers = [await feed.follow(ann, None) for _ in range(STREAMS)]
    with pytest.raises(TooMany):
        await feed.follow(ann, None)
    followers.append(await feed.follow(bob, None))
    feed.leave(followers[0])
    feed.leave(followers[0])
    followers.append(await feed.follow(ann, None))
    for follower in followers:
        feed.leave(follower)
    assert feed.followers == 0


async def test_at_the_end_everybody_is_let_go(pool: Pool, tenant: str) -> None:
    feed = Feed(pool)
    follower = await feed.follow(Sight(tenant, "ann", staff=False), None)
    waiting = asyncio.create_task(follower.next(60.0))
    await asyncio.sleep(0)
    feed.close()
    with pytest.raises(Closed):
        await asyncio.wait_for(waiting, 20)
    feed.leave(follower)
    with pytest.raises(Closed):
        await feed.follow(Sight(tenant, "ann", staff=False), None)


async def test_a_past_that_cannot_be_read_ends_the_stream(home: Home, tenant: str) -> None:
    """After the answer has begun nothing else can be said; the client comes back with the number it has."""
    async with AsyncConnectionPool(home.conninfo, min_size=1, open=False) as pool:
        await told(pool, tenant, "missed")
        feed = Feed(pool)
        follower = await feed.follow(Sight(tenant, "ann", staff=False), 0)
    parts = [part async for part in stream.parts(follower, int(time.time()) + 60)]
    assert len(parts) == 1
    assert b"id: 0" in parts[0]
    feed.leave(follower)


def test_many_tenants_fit_in_few_rings() -> None:
    tenants = {f"{'é' * 90}{number}" for number in range(500)}
    parts = list(payloads(tenants))
    assert {tenant for part in parts for tenant in part.split("\n")} == tenants
    assert all(len(part.encode()) <= PAYLOAD_BYTES for part in parts)
    assert list(payloads([])) == []
