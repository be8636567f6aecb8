"""All the SQL of the documents service. Takes the caller's connection and never commits."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from messaging import outbox
from messaging.database import Connection
from messaging.message import Envelope, Key
from services.documents.fields import Field
from services.documents.records import Earlier, Outcome, Stored, Submission

_PARTS = {
    "columns": sql.SQL(
        "id, tenant, sender, kind, status, file_name, content_type, size_bytes, storage_key, file_removed_at, url, "
        "generation, attempts, fields, model, error, created_at, updated_at"
    ),
    "waiting": sql.SQL("status in ('queued', 'reading', 'retrying')"),
    "settled": sql.SQL("status in ('approved', 'rejected', 'failed')"),
    "add_events": sql.SQL(outbox.stamped(outbox.INSERT, "(select created_at from document)")),
}


def _query(text: LiteralString) -> bytes:
    return sql.SQL(text).format(**_PARTS).as_bytes(None)


_EARLIER = _query("""
select id, fingerprint from documents where tenant = %s and sender = %s and idempotency_key = %s
""")

# Counting stops at the limit. Submissions under way at the same moment do not see each other, so a sender may
# come to stand a few above it.
_ACCEPT = _query("""
with waiting as (
    select count(*) as documents from (
        select from documents
        where tenant = %(tenant)s and sender = %(sender)s and {waiting}
        limit %(sender_limit)s
    ) as counted
), document as (
    insert into documents (id, tenant, sender, kind, file_name, content_type, size_bytes, storage_key, url,
                           idempotency_key, fingerprint)
    select %(document_id)s, %(tenant)s, %(sender)s, %(kind)s, %(file_name)s, %(content_type)s, %(size_bytes)s,
           %(storage_key)s, %(url)s, %(idempotency_key)s, %(fingerprint)s
    from waiting where documents < %(sender_limit)s
    on conflict do nothing
    returning id, created_at
), events as ({add_events} where exists (select from document))
select exists (select from document), (select documents from waiting) >= %(sender_limit)s
""")

_GET = _query("select {columns} from documents where id = %s and tenant = %s")

_PAGE = {
    "sender": sql.SQL("sender = %(sender)s"),
    "status": sql.SQL("status = %(status)s"),
    "before": sql.SQL("id < %(before)s"),
}

# A run may only move a document forward: not one that is finished, nor one a later run or generation has touched.
_BEGIN_READING = _query("""
update documents
set status = 'reading', generation = %(generation)s, attempts = %(attempt)s, error = null,
    updated_at = clock_timestamp()
where id = %(id)s and tenant = %(tenant)s and sender = %(sender)s
  and (generation, attempts) <= (%(generation)s, %(attempt)s)
  and ({waiting} or (status = 'failed' and generation < %(generation)s))
returning {columns}
""")

_FINISH_READING = _query("""
update documents
set status = %(status)s, fields = %(fields)s, model = %(model)s, error = null, updated_at = clock_timestamp()
where id = %(id)s and {waiting}
""")

_NOTE_RETRY = _query("""
update documents set status = 'retrying', error = %(error)s, updated_at = clock_timestamp()
where id = %(id)s and tenant = %(tenant)s and generation <= %(generation)s and {waiting}
""")

_NOTE_FAILURE = _query("""
update documents
set status = 'failed', error = %(error)s, generation = %(generation)s, attempts = %(attempts)s,
    updated_at = clock_timestamp()
where id = %(id)s and tenant = %(tenant)s and sender = %(sender)s and generation <= %(generation)s and {waiting}
""")

# A run that takes the document up meanwhile goes first: its row is locked, and then no longer settled.
_FORGET_FILES = _query("""
update documents set storage_key = null, file_removed_at = clock_timestamp()
where id in (
    select id from documents
    where {settled} and storage_key is not null
      and updated_at < clock_timestamp() - make_interval(secs => %(keep)s)
    order by updated_at limit %(limit)s
    for update skip locked
)
""")

_COUNT = _query("""
select count(*), count(storage_key) from documents
where tenant = %s and sender = %s and created_at <= coalesce(%s, 'infinity'::timestamptz)
""")

_ERASE = _query("""
delete from documents where id in (
    select id from documents where tenant = %s and sender = %s and created_at <= %s limit %s
)
returning storage_key
""")

_KNOWN_KEYS = _query("select storage_key from documents where storage_key = any(%s)")


async def earlier(conn: Connection, tenant: str, sender: str, key: str) -> Earlier | None:
    """What this sender handed in under the idempotency key."""
    cursor = conn.cursor(row_factory=class_row(Earlier))
    return await (await cursor.execute(_EARLIER, (tenant, sender, key))).fetchone()


async def accept(
    conn: Connection, submission: Submission, envelopes: Sequence[Envelope], sender_limit: int
) -> Outcome:
    """Write the document and its events in one statement, or nothing. Raises OutboxFull."""
    parameters = {
        "document_id": submission.id,
        "tenant": submission.tenant,
        "sender": submission.sender,
        "kind": submission.kind,
        "file_name": submission.file_name,
        "content_type": submission.content_type,
        "size_bytes": submission.size_bytes,
        "storage_key": submission.storage_key,
        "url": submission.url,
        "idempotency_key": submission.idempotency_key,
        "fingerprint": submission.fingerprint,
        "sender_limit": sender_limit,
    }
    with outbox.refusing():
        cursor = await conn.execute(_ACCEPT, {**parameters, **outbox.parameters(envelopes)})
    row = await cursor.fetchone()
    assert row is not None
    written, full = row
    if written:
        return Outcome.ACCEPTED
    return Outcome.LIMIT_REACHED if full else Outcome.REPEATED


async def get(conn: Connection, tenant: str, document_id: UUID) -> Stored | None:
    """A tenant's document."""
    cursor = conn.cursor(row_factory=class_row(Stored))
    return await (await cursor.execute(_GET, (document_id, tenant))).fetchone()


async def page(
    conn: Connection, tenant: str, *, sender: str | None, status: str | None, before: UUID | None, limit: int
) -> list[Stored]:
    """A tenant's documents, newest first; `before` is the last id of the page before."""
    given = {"sender": sender, "status": status, "before": before}
    conditions = [
        sql.SQL("tenant = %(tenant)s"),
        *(_PAGE[name] for name, value in given.items() if value is not None),
    ]
    query = sql.SQL("select {columns} from documents where {where} order by id desc limit %(limit)s").format(
        columns=_PARTS["columns"], where=sql.SQL(" and ").join(conditions)
    )
    cursor = conn.cursor(row_factory=class_row(Stored))
    await cursor.execute(query, {**given, "tenant": tenant, "limit": limit})
    return await cursor.fetchall()


async def begin_reading(
    conn: Connection, tenant: str, sender: str, document_id: UUID, *, generation: int, attempt: int
) -> Stored | None:
    """Note that a run has taken the document up. None: there is no such document, or nothing left to read."""
    cursor = conn.cursor(row_factory=class_row(Stored))
    await cursor.execute(
        _BEGIN_READING,
        {"id": document_id, "tenant": tenant, "sender": sender, "generation": generation, "attempt": attempt},
    )
    return await cursor.fetchone()


async def finish_reading(
    conn: Connection, document_id: UUID, status: str, fields: Sequence[Field], model: str
) -> bool:
    """Write the result down. False: the document was finished before."""
    found = Jsonb([asdict(field) for field in fields])
    cursor = await conn.execute(
        _FINISH_READING, {"id": document_id, "status": status, "fields": found, "model": model}
    )
    return cursor.rowcount == 1


async def note_retry(conn: Connection, tenant: str, document_id: UUID, *, generation: int, error: str) -> None:
    """The run failed and another follows."""
    await conn.execute(_NOTE_RETRY, {"id": document_id, "tenant": tenant, "generation": generation, "error": error})


async def note_failure(
    conn: Connection,
    tenant: str,
    sender: str,
    document_id: UUID,
    *,
    generation: int,
    attempts: int,
    error: str,
) -> bool:
    """Nobody tries again by itself. False: there is no such document, or it was finished before."""
    cursor = await conn.execute(
        _NOTE_FAILURE,
        {
            "id": document_id,
            "tenant": tenant,
            "sender": sender,
            "generation": generation,
            "attempts": attempts,
            "error": error,
        },
    )
    return cursor.rowcount == 1


async def answers(conn: Connection) -> bool:
    """Whether the database does."""
    return await (await conn.execute("select 1")).fetchone() is not None


async def forget_files(conn: Connection, keep_seconds: float, limit: int) -> int:
    """Let go of the files of up to `limit` documents that were settled longer ago than that; returns how many.

    The files stay in storage, as orphans: whoever removes them is never ahead of the rows.
    """
    return (await conn.execute(_FORGET_FILES, {"keep": keep_seconds, "limit": limit})).rowcount


async def count(conn: Connection, owner: Key, until: datetime | None) -> tuple[int, int]:
    """How many documents a sender has (or had by then), and how many of those have a file."""
    row = await (await conn.execute(_COUNT, (*owner, until))).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


async def erase(conn: Connection, owner: Key, until: datetime, limit: int) -> list[str | None]:
    """Delete up to `limit` of the documents that a sender had by then; returns the storage key of each, None of one
    without a file.
    """
    return [row[0] for row in await (await conn.execute(_ERASE, (*owner, until, limit))).fetchall()]


async def known_keys(conn: Connection, keys: Collection[str]) -> set[str]:
    """Those of the storage keys that belong to a document."""
    cursor = await conn.execute(_KNOWN_KEYS, (list(keys),))
    return {row[0] for row in await cursor.fetchall()}
