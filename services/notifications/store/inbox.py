"""Notifications, in the order in which they were committed, and who has read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from messaging.database import Connection
from messaging.message import new_id
from services.notifications.notices import Notice
from services.notifications.records import Entry, Sight

READ_BATCH = 1000
"""Notifications marked as read in one statement."""

# The row lock on the feed is what orders the commits; it is taken here, late in the transaction.
_ADD = """
with feed as (
    insert into feeds as f (tenant, last_seq) values (%(tenant)s, cardinality(%(ids)s::uuid[]))
    on conflict (tenant) do update set last_seq = f.last_seq + excluded.last_seq
    returning last_seq - cardinality(%(ids)s::uuid[]) as before
)
insert into notifications (tenant, seq, event_id, about, id, audience_kind, audience, kind, title, body, href)
select %(tenant)s, feed.before + said.place, %(event_id)s, %(about)s,
       said.id, said.audience_kind, said.audience, said.kind, said.title, said.body, said.href
from feed, unnest(%(ids)s::uuid[], %(audience_kinds)s::text[], %(audiences)s::text[], %(kinds)s::text[],
                  %(titles)s::text[], %(bodies)s::text[], %(hrefs)s::text[])
     with ordinality as said (id, audience_kind, audience, kind, title, body, href, place)
on conflict (event_id, audience_kind, audience) do nothing
returning id
"""

_COLUMNS = sql.SQL("n.id, n.seq, n.audience_kind, n.audience, n.kind, n.title, n.body, n.href, n.created_at")
_VISIBLE = sql.SQL(
    "n.tenant = %(tenant)s and ((n.audience_kind = 'person' and n.audience = %(reader)s)"
    " or (n.audience_kind = 'team' and %(staff)s))"
)
_PARTS = {"columns": _COLUMNS, "visible": _VISIBLE}

_HEAD = b"select coalesce((select last_seq from feeds where tenant = %s), 0)"

_BETWEEN = sql.SQL(
    "select {columns} from notifications n"
    " where n.tenant = %(tenant)s and n.seq > %(after)s and n.seq <= %(until)s order by n.seq limit %(limit)s"
).format(**_PARTS)

# A branch for each index: what is for a person may be little among what is for the others of a tenant, or much.
_BRANCH = sql.SQL(
    "(select {columns}, r.read_at from notifications n"
    " left join reads r on r.notification = n.id and r.reader = %(reader)s"
    " where n.tenant = %(tenant)s and {whose} and {which} order by n.seq {order} limit %(limit)s)"
)
_PERSONS = sql.SQL("n.audience_kind = 'person' and n.audience = %(reader)s")
_TEAMS = sql.SQL("n.audience_kind = 'team'")
_ONE_TEAM = sql.SQL("n.audience_kind = 'team' and n.audience = %(team)s")

_READ_BEFORE = sql.SQL(
    "coalesce((select u.seq from read_up_to u"
    " where u.tenant = %(tenant)s and u.reader = %(reader)s and u.staff = %(staff)s), 0)"
)

_READ = sql.SQL("""
with meant as (
    select n.id from notifications n where {visible} and n.id = %(id)s
), marked as (
    insert into reads (notification, reader) select id, %(reader)s from meant on conflict do nothing
)
select id from meant
""").format(**_PARTS)

_UNREAD = sql.SQL(
    "(select n.id, n.seq from notifications n where n.tenant = %(tenant)s and {whose}"
    " and n.seq > %(after)s and n.seq <= %(until)s"
    " and not exists (select from reads r where r.notification = n.id and r.reader = %(reader)s)"
    " order by n.seq limit %(limit)s)"
)
_READ_SOME = sql.SQL("""
with meant as materialized (
    select id, seq from ({branches}) as n order by seq limit %(limit)s
), marked as (
    insert into reads (notification, reader) select id, %(reader)s from meant on conflict do nothing returning 1
)
select (select count(*) from meant), (select max(seq) from meant), (select count(*) from marked)
""")

# What comes later has a higher number.
_NOTE_UP_TO = b"""
insert into read_up_to as u (tenant, reader, staff, seq) values (%(tenant)s, %(reader)s, %(staff)s, %(until)s)
on conflict (tenant, reader, staff) do update set seq = excluded.seq, marked_at = excluded.marked_at
where u.seq < excluded.seq
"""

_SEQ = sql.SQL("select n.seq, {before} from notifications n where {visible} and n.id = %(id)s").format(
    before=_READ_BEFORE, **_PARTS
)

_DROP = b"""
delete from notifications where id in (
    select id from notifications where created_at < clock_timestamp() - make_interval(secs => %s)
    order by created_at limit %s
)
"""

_FORGET = b"delete from read_up_to where marked_at < clock_timestamp() - make_interval(secs => %s)"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries a page holds: read or unread ones, one team's."""

    unread: bool | None = None
    team: str | None = None


async def add(conn: Connection, event_id: str, notices: Sequence[Notice], about: str) -> list[tuple[UUID, Notice]]:
    """Tell these, all of one tenant, and return those that were news; the rest had been told of this event before.

    `about` is the sender whose doing it was.
    """
    ids = {new_id(): notice for notice in notices}
    cursor = await conn.execute(
        _ADD,
        {
            "tenant": notices[0].tenant,
            "event_id": event_id,
            "about": about,
            "ids": list(ids),
            "audience_kinds": [notice.audience_kind for notice in notices],
            "audiences": [notice.audience for notice in notices],
            "kinds": [notice.kind for notice in notices],
            "titles": [notice.title for notice in notices],
            "bodies": [notice.body for notice in notices],
            "hrefs": [notice.href for notice in notices],
        },
    )
    return [(row[0], ids[row[0]]) for row in await cursor.fetchall()]


async def look_once(conn: Connection) -> None:
    """All that is read in this transaction, which must not have begun, is as of one moment."""
    await conn.execute("set transaction isolation level repeatable read read only")


async def head(conn: Connection, tenant: str) -> int:
    """The number of the tenant's newest notification; all below it are committed, or never will be."""
    row = await (await conn.execute(_HEAD, (tenant,))).fetchone()
    assert row is not None
    number: int = row[0]
    return number


async def between(conn: Connection, tenant: str, after: int, until: int, limit: int) -> list[Entry]:
    """The tenant's entries with numbers above `after` and up to `until`, for whomever, oldest first."""
    cursor = conn.cursor(row_factory=class_row(Entry))
    await cursor.execute(_BETWEEN, {"tenant": tenant, "after": after, "until": until, "limit": limit})
    return await cursor.fetchall()


async def missed(conn: Connection, sight: Sight, wanted: Wanted, after: int, until: int, limit: int) -> list[Entry]:
    """What the reader sees of that, oldest first; of `wanted` only the team counts."""
    which = sql.SQL("n.seq > %(after)s and n.seq <= %(until)s")
    return await _seen(conn, sight, wanted, which, sql.SQL("asc"), {"after": after, "until": until, "limit": limit})


async def page(conn: Connection, sight: Sight, wanted: Wanted, *, below: int | None, limit: int) -> list[Entry]:
    """What the reader sees, newest first; `below` is the number of the last entry of the page before."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if wanted.unread is not None:
        conditions.append(sql.SQL("r.read_at is null" if wanted.unread else "r.read_at is not null"))
    if wanted.unread:
        conditions.append(sql.SQL("n.seq > {before}").format(before=_READ_BEFORE))
    if below is not None:
        conditions.append(sql.SQL("n.seq < %(below)s"))
    which = sql.SQL(" and ").join(conditions)
    return await _seen(conn, sight, wanted, which, sql.SQL("desc"), {"below": below, "limit": limit})


async def mark_read(conn: Connection, sight: Sight, notification: UUID) -> bool:
    """The reader has read it. False: there is none that they may see."""
    return await (await conn.execute(_READ, {**_sight(sight), "id": notification})).fetchone() is not None


async def mark_read_up_to(conn: Connection, sight: Sight, notification: UUID) -> int | None:
    """The reader has read this one and all before it; how many were unread. None: they may see no such one.

    READ_BATCH at a time, each batch final by itself unless a transaction is open: whoever breaks it off asks again.
    """
    async with conn.transaction():
        row = await (await conn.execute(_SEQ, {**_sight(sight), "id": notification})).fetchone()
    if row is None:
        return None
    until, after = row
    whose = [_PERSONS, _TEAMS] if sight.staff else [_PERSONS]
    statement = _READ_SOME.format(branches=sql.SQL(" union all ").join(_UNREAD.format(whose=one) for one in whose))
    marked, found = 0, READ_BATCH
    while found == READ_BATCH:
        values = {**_sight(sight), "after": after, "until": until, "limit": READ_BATCH}
        async with conn.transaction():
            some = await (await conn.execute(statement, values)).fetchone()
        assert some is not None
        found, after, marked = some[0], some[1], marked + some[2]
    async with conn.transaction():
        await conn.execute(_NOTE_UP_TO, {**_sight(sight), "until": until})
    return marked


async def drop_old(conn: Connection, keep_seconds: float, limit: int) -> int:
    """Delete up to `limit` notifications older than that, with their reads and deliveries; returns how many."""
    await conn.execute(_FORGET, (keep_seconds,))
    return (await conn.execute(_DROP, (keep_seconds, limit))).rowcount


async def _seen(
    conn: Connection, sight: Sight, wanted: Wanted, which: sql.Composable, order: sql.SQL, values: dict[str, Any]
) -> list[Entry]:
    both = [_PERSONS, _TEAMS] if sight.staff else [_PERSONS]
    whose = both if wanted.team is None else [_ONE_TEAM]
    branches = sql.SQL(" union all ").join(
        _BRANCH.format(columns=_COLUMNS, whose=one, which=which, order=order) for one in whose
    )
    query = sql.SQL("select * from ({branches}) as n order by n.seq {order} limit %(limit)s")
    cursor = conn.cursor(row_factory=class_row(Entry))
    await cursor.execute(
        query.format(branches=branches, order=order), {**_sight(sight), "team": wanted.team, **values}
    )
    return await cursor.fetchall()


def _sight(sight: Sight) -> dict[str, Any]:
    return {"tenant": sight.tenant, "reader": sight.reader, "staff": sight.staff}
