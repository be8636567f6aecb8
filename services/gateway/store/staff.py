"""What people see of dead letters, and what they decide. A cleared letter is nobody's to see or to decide on."""

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from messaging.database import Connection
from services.gateway.records import Content, Filter, Listed, Sight, State

Consumers = Collection[tuple[str, str]]
"""(source topic, consumer) of every consumer there is."""

_PARTS = {
    "columns": sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(Listed)),
    "visible": sql.SQL("(cleared_at is null and (tenant = %(tenant)s or (tenant is null and %(operator)s)))"),
    # What can be sent back: its consumer still exists, and the whole record is known.
    "sendable": sql.SQL(
        "header_names is not null"
        " and (source, consumer) in (select * from unnest(%(sources)s::text[], %(consumers)s::text[]))"
    ),
}


def _query(text: LiteralString) -> bytes:
    return sql.SQL(text).format(**_PARTS).as_bytes(None)


_GET = _query("select {columns} from dead_letters where id = %(id)s and {visible}")

_CONTENT = _query("""
select key, substring(value for %(start)s) as start, octet_length(value) as value_bytes, header_names as names,
       header_values as values
from dead_letters where id = %(id)s and {visible}
""")

_SEND_BACK = _query("""
update dead_letters
set state = 'sending', decided_by = %(who)s, decided_at = clock_timestamp(), send_error = null
where id = %(id)s and {visible} and state = 'open' and {sendable}
returning {columns}
""")

_DISCARD = _query("""
update dead_letters
set state = 'discarded', decided_by = %(who)s, decided_at = clock_timestamp()
where id = %(id)s and {visible} and state = 'open'
returning {columns}
""")

_WHERE = {
    "source": sql.SQL("source = %(source)s"),
    "owner": sql.SQL("owner = %(owner)s"),
    "reason": sql.SQL("reason = %(reason)s"),
    "state": sql.SQL("state = %(state)s"),
    "before": sql.SQL("died_at < %(before)s"),
}

# A letter that died anew meanwhile is not meant: else a broken job would go round for as long as this runs.
_DECIDE_MANY = """
with chosen as (
    select id from dead_letters
    where {where} and state = 'open' and stored_at <= %(asked_at)s and {may}
    order by id limit %(limit)s
    for update skip locked
)
update dead_letters d
set state = %(decision)s, decided_by = %(who)s, decided_at = clock_timestamp(), send_error = null
from chosen where d.id = chosen.id
"""


async def get(conn: Connection, sight: Sight, letter_id: UUID) -> Listed | None:
    """One letter, if the caller may see it."""
    cursor = conn.cursor(row_factory=class_row(Listed))
    return await (await cursor.execute(_GET, {"id": letter_id, **_sight(sight)})).fetchone()


async def content(conn: Connection, sight: Sight, letter_id: UUID, start: int) -> Content | None:
    """Its record, with the first `start` bytes of the value."""
    cursor = conn.cursor(row_factory=class_row(Content), binary=True)
    return await (await cursor.execute(_CONTENT, {"id": letter_id, "start": start, **_sight(sight)})).fetchone()


async def page(conn: Connection, sight: Sight, wanted: Filter, *, below: UUID | None, limit: int) -> list[Listed]:
    """Letters, the last that arrived first; `below` is the last id of the page before."""
    conditions = _conditions(wanted)
    if below is not None:
        conditions.append(sql.SQL("id < %(below)s"))
    query = sql.SQL("select {columns} from dead_letters where {where} order by id desc limit %(limit)s").format(
        columns=_PARTS["columns"], where=sql.SQL(" and ").join(conditions)
    )
    cursor = conn.cursor(row_factory=class_row(Listed))
    await cursor.execute(query, {**_values(sight, wanted), "below": below, "limit": limit})
    return await cursor.fetchall()


async def send_back(conn: Connection, sight: Sight, letter_id: UUID, who: str, consumers: Consumers) -> Listed | None:
    """Decide that an open letter goes back to its consumer. None: nothing was changed; `get` tells why."""
    parameters = {"id": letter_id, "who": who, **_sight(sight), **_consumers(consumers)}
    cursor = conn.cursor(row_factory=class_row(Listed))
    return await (await cursor.execute(_SEND_BACK, parameters)).fetchone()


async def discard(conn: Connection, sight: Sight, letter_id: UUID, who: str) -> Listed | None:
    """Decide that an open letter is left as it is. None: nothing was changed; `get` tells why."""
    cursor = conn.cursor(row_factory=class_row(Listed))
    return await (await cursor.execute(_DISCARD, {"id": letter_id, "who": who, **_sight(sight)})).fetchone()


async def clock(conn: Connection) -> datetime:
    """The database's time."""
    row = await (await conn.execute("select clock_timestamp()")).fetchone()
    assert row is not None
    at: datetime = row[0]
    return at


async def decide_many(
    conn: Connection,
    sight: Sight,
    wanted: Filter,
    decision: State,
    who: str,
    consumers: Consumers,
    *,
    asked_at: datetime,
    limit: int,
) -> int:
    """Decide on up to `limit` of the open letters that were here at `asked_at`; returns on how many.

    `decision` is 'sending' (of what can be sent) or 'discarded'.
    """
    query = sql.SQL(_DECIDE_MANY).format(
        where=sql.SQL(" and ").join(_conditions(wanted)),
        may=_PARTS["sendable"] if decision == "sending" else sql.SQL("true"),
    )
    parameters = {
        **_values(sight, wanted),
        **_consumers(consumers),
        "asked_at": asked_at,
        "limit": limit,
        "decision": decision,
        "who": who,
    }
    return (await conn.execute(query, parameters)).rowcount


def _sight(sight: Sight) -> dict[str, Any]:
    return {"tenant": sight.tenant, "operator": sight.operator}


def _consumers(consumers: Consumers) -> dict[str, Any]:
    return {"sources": [source for source, _ in consumers], "consumers": [consumer for _, consumer in consumers]}


def _conditions(wanted: Filter) -> list[sql.SQL]:
    whose = sql.SQL("tenant is null and %(operator)s" if wanted.unowned else "tenant = %(tenant)s")
    here = sql.SQL("cleared_at is null")
    return [here, whose, *(condition for name, condition in _WHERE.items() if getattr(wanted, name) is not None)]


def _values(sight: Sight, wanted: Filter) -> dict[str, Any]:
    return {**_sight(sight), **{name: getattr(wanted, name) for name in _WHERE}}
