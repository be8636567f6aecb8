"""All the SQL of the analytics service: the tries of events that are not settled yet, and whose counts are to go."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from messaging.database import Connection
from services.analytics.counting import Place


class Begun(NamedTuple):
    """An event that was begun: how often, and why its last try failed if that is known."""

    tries: int
    reason: str | None = None
    error: str | None = None


class Asked(NamedTuple):
    """A sender whose counts are to go, by the digest of their name."""

    owner: bytes
    asked_at: datetime


_BEGIN = """
insert into event_tries (topic, partition, at_offset, tries)
select u.*, 1 from unnest(%s::text[], %s::int[], %s::bigint[]) as u (topic, partition, at_offset)
on conflict (topic, partition, at_offset) do update
set tries = event_tries.tries + 1, reason = null, error = null, updated_at = clock_timestamp()
"""
_GIVE_BACK = """
update event_tries t set tries = greatest(t.tries - 1, 0), updated_at = clock_timestamp()
from unnest(%s::text[], %s::int[], %s::bigint[]) as u (topic, partition, at_offset)
where (t.topic, t.partition, t.at_offset) = (u.topic, u.partition, u.at_offset)
"""
_NOTE = """
update event_tries set reason = %s, error = %s, updated_at = clock_timestamp()
where topic = %s and partition = %s and at_offset = %s
"""
_SETTLE = """
delete from event_tries t using unnest(%s::text[], %s::int[], %s::bigint[]) as u (topic, partition, at_offset)
where (t.topic, t.partition, t.at_offset) = (u.topic, u.partition, u.at_offset)
"""


async def unsettled(conn: Connection, topics: Sequence[str]) -> dict[Place, Begun]:
    """Every event of these topics that was begun and not settled."""
    cursor = await conn.execute(
        "select topic, partition, at_offset, tries, reason, error from event_tries where topic = any(%s)",
        [list(topics)],
    )
    return {Place(*row[:3]): Begun(*row[3:]) for row in await cursor.fetchall()}


async def begin(conn: Connection, places: Sequence[Place]) -> None:
    """One more try of each."""
    await conn.execute(_BEGIN, _columns(places), prepare=True)


async def give_back(conn: Connection, places: Sequence[Place]) -> None:
    """Undo the last try of each: it was not the event's fault that nothing came of it."""
    await conn.execute(_GIVE_BACK, _columns(places))


async def note(conn: Connection, place: Place, reason: str, error: str) -> None:
    """Why the last try failed."""
    await conn.execute(_NOTE, [reason, error, *place])


async def settle(conn: Connection, places: Sequence[Place]) -> None:
    """They are counted or set aside."""
    await conn.execute(_SETTLE, _columns(places), prepare=True)


async def ask_to_erase(conn: Connection, owner: bytes) -> None:
    """This sender's counts are to go."""
    await conn.execute(
        "insert into count_erasures (owner, asked_at) values (%s, clock_timestamp()) on conflict (owner) do update"
        " set asked_at = excluded.asked_at, done_at = null, keys = null",
        [owner],
    )


async def asked_to_erase(conn: Connection) -> tuple[list[Asked], float]:
    """All whose counts are to go and have not yet; and a time (Unix, seconds) by which all of these were asked for:
    who is not among them is asked for later.
    """
    # now() is when the transaction began, which is this statement's own under autocommit: never after it looks.
    # statement_timestamp() may be: a prepared statement's snapshot is taken when it is bound, and its time when it
    # is executed.
    cursor = await conn.execute(
        "select extract(epoch from now())::double precision, owner, asked_at"
        " from (values (1)) as once left join count_erasures on done_at is null"
    )
    rows = await cursor.fetchall()
    return [Asked(bytes(row[1]), row[2]) for row in rows if row[1] is not None], float(rows[0][0])


async def note_erased(conn: Connection, asked: Asked, keys: int) -> None:
    """They have gone, so many keys; unless it was asked anew meanwhile."""
    await conn.execute(
        "update count_erasures set done_at = clock_timestamp(), keys = %s where owner = %s and asked_at = %s",
        [keys, *asked],
    )


async def keys_erased(conn: Connection, owner: bytes) -> int | None:
    """How many keys have gone since it was asked for last; None while they have not."""
    cursor = await conn.execute("select keys from count_erasures where owner = %s and done_at is not null", [owner])
    row = await cursor.fetchone()
    return None if row is None else int(row[0])


async def forget_done_erasures(conn: Connection, older_than_seconds: float) -> int:
    """Drop the rows of those whose counts went longer ago than that; how many."""
    cursor = await conn.execute(
        "delete from count_erasures where done_at < clock_timestamp() - make_interval(secs => %s)",
        [older_than_seconds],
    )
    return cursor.rowcount


async def erased(conn: Connection) -> dict[bytes, float]:
    """When each sender was erased who was: Unix time in seconds, by the digest of their name."""
    cursor = await conn.execute("select owner, extract(epoch from erased_at)::double precision from erasures")
    return {bytes(row[0]): float(row[1]) for row in await cursor.fetchall()}


async def answers(conn: Connection) -> bool:
    """For readiness checks."""
    await conn.execute("select 1")
    return True


def _columns(places: Sequence[Place]) -> tuple[list[str], list[int], list[int]]:
    return [place.topic for place in places], [p.partition for p in places], [p.offset for p in places]
