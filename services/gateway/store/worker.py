"""What happens behind people's backs: letters are projected, sent back, counted, and cleared in the end."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from messaging.database import Connection
from messaging.message import new_id
from services.gateway.letters import Letter
from services.gateway.records import Due

_STORED = [field.name for field in fields(Letter) if field.name != "headers"]

# Binary parameters: bytes in text form are twice as long.
_ADD = (
    sql.SQL(
        "insert into dead_letters (id, {names}, size_bytes, header_names, header_values)"
        " values (%b, {values}, %b, %b::bytea[], %b::bytea[]) on conflict do nothing"
    )
    .format(
        names=sql.SQL(", ").join(map(sql.Identifier, _STORED)),
        values=sql.SQL(", ").join([sql.SQL("%b")] * len(_STORED)),
    )
    .as_bytes(None)
)

_CLAIM = b"""
with waiting as (
    select id, decided_at, size_bytes from dead_letters
    where state = 'sending' and (leased_until is null or leased_until <= clock_timestamp())
    order by decided_at, id limit %(limit)s
    for update skip locked
), sized as (
    select id, sum(size_bytes) over (order by decided_at, id) - size_bytes as before from waiting
)
update dead_letters d
set leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
from sized where d.id = sized.id and sized.before < %(bytes)s
returning d.id, source, consumer, generation, origin, key, value, header_names as names, header_values as values
"""

_RENEW = b"""
update dead_letters set leased_until = clock_timestamp() + make_interval(secs => %s)
where id = any(%s) and state = 'sending'
"""

_SENT = b"""
update dead_letters set state = 'sent', sent_at = clock_timestamp(), leased_until = null
where id = any(%s) and state = 'sending'
"""

_REFUSED = b"""
update dead_letters set state = 'open', decided_by = null, decided_at = null, leased_until = null, send_error = %s
where id = %s and state = 'sending'
"""

EMPTIED = sql.SQL("""
    cleared_at = clock_timestamp(), key = null, value = null, header_names = null, header_values = null,
    size_bytes = 0, tenant = null, owner = null, type = null, subject = null, error = null, decided_by = null,
    send_error = null
""")
"""What a person could read or run again goes; the identity stays while the topics may bring the record again."""

CLOSED = sql.SQL("""
    state = case when d.state in ('sent', 'discarded') then d.state else 'discarded' end,
    decided_at = coalesce(d.decided_at, clock_timestamp()), leased_until = null
""")
"""And what nobody has decided on, or what was about to be sent, is not to be."""

_PARTS = {"emptied": EMPTIED, "closed": CLOSED}


def _query(text: LiteralString) -> bytes:
    return sql.SQL(text).format(**_PARTS).as_bytes(None)


_CLEAR = _query("""
update dead_letters set {emptied}
where id in (
    select id from dead_letters
    where state in ('sent', 'discarded') and cleared_at is null
      and decided_at < clock_timestamp() - make_interval(secs => %(keep)s)
      and coalesce(sent_at, decided_at) < clock_timestamp() - make_interval(secs => %(keep)s)
    order by decided_at limit %(limit)s
)
""")

_EMPTY = _query("""
update dead_letters d set {emptied}, {closed}
from unnest(%s::text[], %s::text[], %s::text[], %s::int[]) as e (source, consumer, message_id, generation)
where d.source = e.source and d.consumer = e.consumer and d.message_id = e.message_id
  and d.generation = e.generation and d.cleared_at is null
""")

_DROP = b"""
delete from dead_letters where id in (
    select id from dead_letters
    where cleared_at is not null and stored_at < clock_timestamp() - make_interval(secs => %s)
    order by stored_at limit %s
)
"""

_UNOWNED = b"""
select source, count(*) from dead_letters
where tenant is null and state = 'open' and cleared_at is null group by source
"""


async def add(conn: Connection, letters: Iterable[Letter]) -> int:
    """Store those that are not known yet; returns how many those were."""
    async with conn.cursor() as cursor:
        await cursor.executemany(_ADD, [_row(letter) for letter in letters])
        return cursor.rowcount


async def claim(conn: Connection, *, limit: int, max_bytes: int, lease_seconds: float) -> list[Due]:
    """Letters to be sent back that no process is at, for this one: at least one if there is any."""
    cursor = conn.cursor(row_factory=class_row(Due), binary=True)
    await cursor.execute(_CLAIM, {"limit": limit, "bytes": max_bytes, "lease": lease_seconds})
    return sorted(await cursor.fetchall(), key=lambda due: due.id)


async def renew(conn: Connection, ids: Sequence[UUID], lease_seconds: float) -> None:
    """We are still at these."""
    await conn.execute(_RENEW, (lease_seconds, list(ids)))


async def sent(conn: Connection, ids: Sequence[UUID]) -> None:
    """Kafka has these."""
    await conn.execute(_SENT, (list(ids),))


async def refused(conn: Connection, letter_id: UUID, error: str) -> None:
    """This one cannot be sent back; it is open again and says why."""
    await conn.execute(_REFUSED, (error, letter_id))


async def clear_resolved(conn: Connection, keep_seconds: float, limit: int) -> int:
    """Clear up to `limit` letters that were sent or discarded more than `keep_seconds` ago; returns how many.

    Their identity and state stay, so that a projector that reads a topic from its beginning does not open them again.
    """
    return (await conn.execute(_CLEAR, {"keep": keep_seconds, "limit": limit})).rowcount


async def empty(conn: Connection, letters: Sequence[Letter]) -> int:
    """Clear these, which are stored, whatever was decided on them; returns how many were not cleared yet."""
    identities = [(letter.source, letter.consumer, letter.message_id, letter.generation) for letter in letters]
    return (await conn.execute(_EMPTY, [list(column) for column in zip(*identities, strict=True)])).rowcount


async def drop_forgotten(conn: Connection, keep_seconds: float, limit: int) -> int:
    """Delete up to `limit` cleared letters that were stored longer ago than that; returns how many.

    Safe once the topics have forgotten them: until then their identity keeps them from being opened again.
    """
    return (await conn.execute(_DROP, (keep_seconds, limit))).rowcount


async def unowned(conn: Connection) -> dict[str, int]:
    """Open letters that no tenant owns, by source."""
    return dict(await (await conn.execute(_UNOWNED)).fetchall())


def _row(letter: Letter) -> tuple[Any, ...]:
    names = None if letter.headers is None else [name.encode() for name, _ in letter.headers]
    values = None if letter.headers is None else [value for _, value in letter.headers]
    return new_id(), *(getattr(letter, name) for name in _STORED), letter.size_bytes, names, values
