"""Looking for the few among the many: by an index, and no further than what was read as a whole."""

import psycopg
import pytest

from messaging.database import Connection, Pool
from services.notifications.notices import Notice
from services.notifications.records import Sight
from services.notifications.store import inbox, outgoing
from services.notifications.store.inbox import Wanted
from tests.fixtures.processes import Home
from tests.notifications.test_feed import told

MANY = 4000


async def asked(conn: Connection, query: bytes) -> int:
    """What the statistics say, all that this connection did included."""
    await conn.execute("select pg_stat_force_next_flush()")
    await conn.commit()
    row = await (await conn.execute(query)).fetchone()
    assert row is not None
    await conn.commit()
    return int(row[0])


SCANS = b"select idx_scan from pg_stat_user_indexes where indexrelname = 'deliveries_state'"
LOOKED_AT = b"""
select t.seq_tup_read + (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid)
from pg_stat_user_tables t where t.relname = 'notifications'
"""


def fill(home: Home, tenant: str) -> None:
    """Many notifications of a team, each delivered."""
    home.change(
        "with feed as (insert into feeds values (%s, %s) returning tenant), told as ("
        " insert into notifications (id, tenant, seq, event_id, audience_kind, audience, kind, title, body, href)"
        " select gen_random_uuid(), tenant, n, tenant || n, 'team', 'it', 'request_created', 'no.', '', '/'"
        " from feed, generate_series(1, %s) n returning id, tenant)"
        " insert into deliveries (id, tenant, notification, owner_kind, owner, channel, address, state)"
        " select gen_random_uuid(), tenant, id, 'team', 'it', 'email', 'it@example.com', 'delivered' from told",
        tenant,
        MANY,
        MANY,
    )
    home.change("analyze notifications, deliveries")


async def test_failed_deliveries_are_found_without_reading_the_others(home: Home, tenant: str) -> None:
    fill(home, tenant)
    home.change(
        "update deliveries set state = 'failed' where id in (select id from deliveries where tenant = %s limit 3)",
        tenant,
    )
    async with await psycopg.AsyncConnection.connect(home.conninfo) as conn:
        before = await asked(conn, SCANS)
        for _ in range(10):  # prepared after some, with a plan for all values
            found = await outgoing.deliveries(conn, tenant, person=None, state="failed", below=None, limit=50)
            assert len(found) == 3
        after = await asked(conn, SCANS)
    assert after - before == 10


async def test_what_was_read_as_a_whole_is_not_looked_through_again(home: Home, pool: Pool, tenant: str) -> None:
    fill(home, tenant)
    rob, eve = Sight(tenant, "rob", staff=True), Sight(tenant, "eve", staff=True)
    async with pool.connection() as conn:
        (newest,) = await inbox.page(conn, rob, Wanted(), below=None, limit=1)
        assert await inbox.mark_read_up_to(conn, rob, newest.id) == MANY
    await told(pool, tenant, "for rob", audience="rob")
    async with await psycopg.AsyncConnection.connect(home.conninfo) as conn:
        before = await asked(conn, LOOKED_AT)
        for _ in range(3):
            assert [entry.title for entry in await inbox.page(conn, rob, Wanted(True), below=None, limit=5)] == [
                "for rob"
            ]
        (last,) = await inbox.page(conn, rob, Wanted(True), below=None, limit=1)
        assert await inbox.mark_read_up_to(conn, rob, last.id) == 1
        assert await inbox.page(conn, rob, Wanted(True), below=None, limit=5) == []
        after = await asked(conn, LOOKED_AT)
        assert after - before < 100
        # Going back makes nothing unread, and others have read nothing.
        assert await inbox.mark_read_up_to(conn, rob, newest.id) == 0
        assert await inbox.page(conn, rob, Wanted(True), below=None, limit=5) == []
        assert len(await inbox.page(conn, eve, Wanted(True), below=None, limit=5)) == 5
        assert len(await inbox.page(conn, rob, Wanted(False), below=None, limit=5)) == 5


async def test_many_are_marked_as_read_in_batches_each_final_by_itself(
    home: Home, pool: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "READ_BATCH", MANY // 8)
    fill(home, tenant)
    await told(pool, tenant, "for rob", audience="rob")
    rob = Sight(tenant, "rob", staff=True)
    async with pool.connection() as conn:
        (newest,) = await inbox.page(conn, rob, Wanted(), below=None, limit=1)
        (middle,) = await inbox.page(conn, rob, Wanted(), below=MANY // 2 + 1, limit=1)
    async with pool.connection() as conn:
        assert await inbox.mark_read_up_to(conn, rob, middle.id) == MANY // 2
        assert await inbox.mark_read_up_to(conn, rob, newest.id) == MANY // 2 + 1
    by_transaction = home.rows(
        "select count(*) from reads r join notifications n on n.id = r.notification"
        " where n.tenant = %s group by r.xmin::text order by 1",
        tenant,
    )
    assert by_transaction == [(1,)] + [(MANY // 8,)] * 8
    assert home.rows("select seq from read_up_to where tenant = %s", tenant) == [(MANY + 1,)]


async def test_who_read_all_as_a_sender_has_not_read_what_they_see_as_staff(pool: Pool, tenant: str) -> None:
    ann = Sight(tenant, "ann", staff=False)
    async with pool.connection() as conn:
        team = Notice(tenant, "team", "it", "request_created", "the team's", "", "/")
        await inbox.add(conn, f"{tenant}-e", [team], "bob")
    await told(pool, tenant, "mine")
    async with pool.connection() as conn:
        (mine,) = await inbox.page(conn, ann, Wanted(True), below=None, limit=5)
        assert await inbox.mark_read_up_to(conn, ann, mine.id) == 1
        promoted = await inbox.page(conn, Sight(tenant, "ann", staff=True), Wanted(True), below=None, limit=5)
    assert [entry.title for entry in promoted] == ["the team's"]


async def test_how_far_somebody_has_read_is_forgotten_with_what_they_read(
    home: Home, pool: Pool, tenant: str
) -> None:
    await told(pool, tenant, "old")
    ann = Sight(tenant, "ann", staff=False)
    async with pool.connection() as conn:
        (old,) = await inbox.page(conn, ann, Wanted(), below=None, limit=1)
        await inbox.mark_read_up_to(conn, ann, old.id)
        await inbox.drop_old(conn, 3600, 10)
    kept = "select count(*) from read_up_to where tenant = %s"
    assert home.rows(kept, tenant) == [(1,)]
    home.change("update read_up_to set marked_at = now() - interval '2 hours' where tenant = %s", tenant)
    async with pool.connection() as conn:
        await inbox.drop_old(conn, 3600, 10)
        assert await inbox.page(conn, ann, Wanted(True), below=None, limit=5) == []
    assert home.rows(kept, tenant) == [(0,)]
