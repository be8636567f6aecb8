"""Erasing what is kept of one sender, and remembering that it was, so that what is on its way does not bring it back.

A service says what it keeps (`Held`); `count` and `erase` do the rest, in batches, each final by itself: what broke
off is repeated. `mark` comes first. Whoever turns records of Kafka into rows asks `when`, in the transaction of those
rows, and leaves alone what happened before: either it sees the mark, or its rows are there to be erased.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from messaging.database import Connection
from messaging.message import TIME, Key, header_text

BATCH = 10_000
"""Rows that go in one transaction."""

LOCK_TIMEOUT = "15s"
"""Longest wait for those who are about to write rows of the sender."""

Told = Callable[[str, int], None]
"""Called with a kind, and how many more of it are gone for good."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is kept of a sender, of one kind.

    count  gives their number
    erase  removes up to %(limit)s of them, or all at once

    Both are given %(tenant)s, %(sender)s and %(key)s, which is `<tenant>:<sender>`.
    """

    kind: str
    count: LiteralString | bytes
    erase: LiteralString | bytes


OURS = (
    # The whole outbox is looked through, so this goes in one piece. A partition's rows have no ctid of their own.
    Held(
        "events in the outbox",
        "select count(*) from outbox where key = %(key)s",
        "delete from outbox where key = %(key)s",
    ),
    Held(
        "events Kafka refused",
        "select count(*) from outbox_refused where key = %(key)s",
        "delete from outbox_refused where key = %(key)s",
    ),
    Held(
        "runs of jobs",
        "select count(*) from ledger_attempts where tenant = %(tenant)s and sender = %(sender)s",
        "delete from ledger_attempts where ctid = any(array(select ctid from ledger_attempts"
        " where tenant = %(tenant)s and sender = %(sender)s limit %(limit)s))",
    ),
)
"""What every service's database keeps. Erase it last: a run under way may write an event until its own rows go."""

_MARK = """
insert into erasures as e (owner, erased_at) values (%s, clock_timestamp())
on conflict (owner) do update set erased_at = excluded.erased_at
"""


async def count(conn: Connection, held: Sequence[Held], owner: Key) -> dict[str, int]:
    """How many there are of each kind."""
    found = {}
    for one in held:
        row = await (await conn.execute(one.count, _parameters(owner))).fetchone()
        assert row is not None
        found[one.kind] = int(row[0])
    return found


async def erase(conn: Connection, held: Sequence[Held], owner: Key, told: Told) -> dict[str, int]:
    """Erase all of each kind, in this order; how many there were. The connection is in no transaction."""
    gone = dict.fromkeys((one.kind for one in held), 0)
    for one in held:
        while True:
            async with conn.transaction():
                rows = (await conn.execute(one.erase, _parameters(owner))).rowcount
            gone[one.kind] += rows
            told(one.kind, rows)
            if rows < BATCH:
                break
    return gone


async def mark(conn: Connection, owner: Key) -> None:
    """Remember that this sender is erased as of now. Returns when every transaction that did not know has ended.

    The connection is in no transaction, and is the owner's of the tables.
    """
    async with conn.transaction():
        await conn.execute("select set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
        # Whoever has asked `when` shares the lock until its rows are committed. Other senders are not kept waiting.
        await conn.execute("select pg_advisory_xact_lock(erasure_lock(%s))", [digest(owner)])
        await conn.execute(_MARK, [digest(owner)])


async def when(conn: Connection, owners: Iterable[Key]) -> dict[Key, datetime]:
    """Those of the senders that were erased, and when last. Holds off their `mark` until the transaction ends."""
    by_digest = {digest(owner): owner for owner in owners}
    cursor = await conn.execute("select owner, erased_at from erased_when(%s)", [list(by_digest)])
    return {by_digest[bytes(row[0])]: row[1] for row in await cursor.fetchall()}


async def forget(conn: Connection, older_than_seconds: float) -> int:
    """Drop the marks of erasures longer ago than that; how many."""
    cursor = await conn.execute(
        "delete from erasures where erased_at < clock_timestamp() - make_interval(secs => %s)", [older_than_seconds]
    )
    return cursor.rowcount


def before(erased_at: datetime, headers: Mapping[str, bytes]) -> bool:
    """Whether a record's event happened before that; one that does not say when is taken to have."""
    at = happened(headers)
    return at is None or at <= erased_at


def happened(headers: Mapping[str, bytes]) -> datetime | None:
    """When the event of a record happened, as it says itself; None when it says nothing usable."""
    try:
        at = datetime.fromisoformat(header_text(headers, TIME) or "")
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def digest(owner: Key) -> bytes:
    """By which a sender is remembered."""
    return hashlib.sha256(str(owner).encode()).digest()


def _parameters(owner: Key) -> dict[str, object]:
    return {"tenant": owner.tenant, "sender": owner.sender, "key": str(owner), "limit": BATCH}
