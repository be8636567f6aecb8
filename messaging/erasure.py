"""Erasing what is kept of one sender, and remembering that it was, so that what is on its way does not bring it back.

What goes is what there was at one moment, the same in every service. `mark` says so beforehand, in each of them;
once the moment has passed, `erase` takes what a service keeps (`Held`), in batches, each final by itself: what broke
off is repeated. Whoever makes rows or events of what came from Kafka asks `when`, in the transaction of those rows,
and leaves alone what happened before the moment. docs/capabilities/erasure.md says why nothing falls between.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString

from messaging.database import Connection
from messaging.errors import MessagingError
from messaging.message import TIME, Key, header_text
from messaging.migrate import IDLE_IN_TRANSACTION

BATCH = 10_000
"""Rows that go in one transaction."""

PATIENCE = timedelta(seconds=15)
"""Longest wait for those who are about to write rows of the sender."""

LEAD = timedelta(seconds=2)
"""A moment is marked in every service no later than this before it comes."""

LOOK_SECONDS = 0.05

Told = Callable[[str, int], None]
"""Called with a kind, and how many more of it are gone for good."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is kept of a sender, of one kind.

    count  gives their number
    erase  removes up to %(limit)s of them, or all at once

    Both are given %(tenant)s, %(sender)s and %(key)s, which is `<tenant>:<sender>`, and %(until)s, the moment: what
    the database wrote down later is new work and stays.
    """

    kind: str
    count: LiteralString | bytes
    erase: LiteralString | bytes


# Its time is the worker's that ran it, the only one here that is not the database's. A wrong clock leaves a line to
# the next erasing, or takes one of new work along; nobody acts on either.
RUNS = Held(
    "runs of jobs",
    "select count(*) from ledger_attempts where tenant = %(tenant)s and sender = %(sender)s"
    " and ready_at <= %(until)s::timestamptz",
    "delete from ledger_attempts where ctid = any(array(select ctid from ledger_attempts"
    " where tenant = %(tenant)s and sender = %(sender)s and ready_at <= %(until)s::timestamptz limit %(limit)s))",
)

OURS = (
    # The whole outbox is looked through, so this goes in one piece. A partition's rows have no ctid of their own.
    Held(
        "events in the outbox",
        "select count(*) from outbox where key = %(key)s and occurred_at <= %(until)s::timestamptz",
        "delete from outbox where key = %(key)s and occurred_at <= %(until)s::timestamptz",
    ),
    Held(
        "events Kafka refused",
        "select count(*) from outbox_refused where key = %(key)s and occurred_at <= %(until)s::timestamptz",
        "delete from outbox_refused where key = %(key)s and occurred_at <= %(until)s::timestamptz",
    ),
    RUNS,
)
"""What every service's database keeps. Erase it last: a break leaves rows that are found again, not events alone."""

_MARK = """
insert into erasures as e (owner, erased_at) values (%s, %s)
on conflict (owner) do update set erased_at = greatest(e.erased_at, excluded.erased_at)
returning erased_at
"""

# A statement has this lock before it reads the clock, and keeps it until its transaction has ended.
_WRITING = """
select virtualtransaction from pg_locks
where locktype = 'relation' and relation = any(%s::text[]::regclass[]) and mode = 'RowExclusiveLock' and granted
  and database = (select oid from pg_database where datname = current_database())
"""


class Busy(MessagingError):
    """A transaction has been open for too long."""


async def moment(conn: Connection, ahead: timedelta = timedelta()) -> datetime:
    """The time in so long from now, by the clock of the database's server."""
    row = await (await conn.execute("select clock_timestamp() + %s", [ahead])).fetchone()
    assert row is not None
    at: datetime = row[0]
    return at


async def count(conn: Connection, held: Sequence[Held], owner: Key, until: datetime | None = None) -> dict[str, int]:
    """How many there are of each kind; with `until`, of those that there were by then."""
    found = {}
    for one in held:
        row = await (await conn.execute(one.count, _parameters(owner, until))).fetchone()
        assert row is not None
        found[one.kind] = int(row[0])
    return found


async def erase(conn: Connection, held: Sequence[Held], owner: Key, until: datetime, told: Told) -> dict[str, int]:
    """Erase of each kind what there was by then, in this order; how many. The connection is in no transaction."""
    gone = dict.fromkeys((one.kind for one in held), 0)
    for one in held:
        while True:
            async with conn.transaction():
                rows = (await conn.execute(one.erase, _parameters(owner, until))).rowcount
            gone[one.kind] += rows
            told(one.kind, rows)
            if rows < BATCH:
                break
    return gone


async def mark(conn: Connection, owner: Key, at: datetime) -> datetime:
    """Remember that of this sender all goes that there is at that moment, unless a later one is remembered; which of
    them holds now. Every transaction that did not know has ended by the time this one does.

    The connection is the owner's of the tables, and in no transaction.
    """
    async with conn.transaction():
        # Whoever stands still here is in the way of what the sender's events bring.
        await conn.execute(
            "select set_config('lock_timeout', %s, true),"
            " set_config('idle_in_transaction_session_timeout', %s, true)",
            [f"{PATIENCE.total_seconds():g}s", IDLE_IN_TRANSACTION],
        )
        # Whoever has asked `when` shares the lock until its rows are committed. Other senders are not kept waiting.
        await conn.execute("select pg_advisory_xact_lock(erasure_lock(%s))", [digest(owner)])
        row = await (await conn.execute(_MARK, [digest(owner), at])).fetchone()
    assert row is not None
    holds: datetime = row[0]
    return holds


async def await_writers(conn: Connection, tables: Sequence[str] = ("outbox",)) -> None:
    """Wait until every transaction has ended that has written into one of these tables or is about to: what they
    wrote by now is there to be erased. Nobody is kept waiting for it. Raises Busy after PATIENCE.
    """
    deadline, left = time.monotonic() + PATIENCE.total_seconds(), await _writing(conn, tables)
    while left:
        if time.monotonic() > deadline:
            raise Busy(
                f"{conn.info.dbname}: a transaction that writes into {' or '.join(tables)} has been open for more "
                f"than {PATIENCE.total_seconds():g} s. What is erased by now stays erased; run this again."
            )
        await asyncio.sleep(LOOK_SECONDS)
        left &= await _writing(conn, tables)


async def when(conn: Connection, owners: Iterable[Key]) -> dict[Key, datetime]:
    """Those of the senders that were erased, and when last. Holds off their `mark` until the transaction ends."""
    by_digest = {digest(owner): owner for owner in owners}
    cursor = await conn.execute("select owner, erased_at from erased_when(%s)", [list(by_digest)])
    return {by_digest[bytes(row[0])]: row[1] for row in await cursor.fetchall()}


async def asked_for(conn: Connection, owner: Key) -> datetime | None:
    """As of when an erasure of that name was last asked for. Keeps nobody waiting, and is not kept waiting."""
    cursor = await conn.execute("select erased_at from erasures where owner = %s", [digest(owner)])
    row = await cursor.fetchone()
    return row[0] if row is not None else None


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


async def _writing(conn: Connection, tables: Sequence[str]) -> set[str]:
    return {row[0] for row in await (await conn.execute(_WRITING, [list(tables)])).fetchall()}


def _parameters(owner: Key, until: datetime | None) -> dict[str, object]:
    at = "infinity" if until is None else until
    return {"tenant": owner.tenant, "sender": owner.sender, "key": str(owner), "until": at, "limit": BATCH}
