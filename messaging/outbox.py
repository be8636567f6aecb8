"""The write side of the outbox: events and jobs become rows of the caller's own transaction.

Writers never wake the relay by hand: the table's trigger does, and refuses rows when the outbox is full.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, LiteralString

import psycopg

from messaging.database import Connection
from messaging.errors import OutboxFull
from messaging.message import Envelope

_NOW: LiteralString = "clock_timestamp()"
"""When the events of the INSERTs happen, unless an envelope says."""

FULL = "WB503"
"""SQLSTATE the trigger raises when the outbox is full."""

REPLAY_WINDOW = timedelta(days=7)
"""How long rows are kept after Kafka confirmed them."""

INSERT: LiteralString = """
INSERT INTO outbox (id, topic, key, type, version, payload, source, subject, traceparent, occurred_at)
SELECT id, topic, key, type, version, payload, source, subject, traceparent,
    coalesce(occurred_at, clock_timestamp()) FROM (
    SELECT * FROM unnest(
        %(id)s::uuid[], %(topic)s::text[], %(key)s::text[], %(type)s::text[], %(version)s::int[],
        %(payload)b::bytea[], %(source)s::text[], %(subject)s::text[], %(traceparent)s::text[],
        %(occurred_at)s::timestamptz[]
    ) WITH ORDINALITY AS e
        (id, topic, key, type, version, payload, source, subject, traceparent, occurred_at, place)
    ORDER BY place
) AS envelopes
"""
"""For a service that writes its row and its events in ONE statement: a data-modifying CTE. `parameters` fills it in.

    WITH request AS (INSERT INTO requests … RETURNING id), events AS ({INSERT} WHERE EXISTS (SELECT FROM request))
    SELECT id FROM request

The condition makes the rows follow the first CTE: they are numbered after its row lock is held, which is what keeps
the events of one aggregate in the order of its changes; and there are none when it changed nothing.
Run it inside `refusing()`. `stamped` has the events happen when the row says.
"""

INSERT_ALIKE: LiteralString = """
INSERT INTO outbox (id, topic, key, type, version, payload, source, subject, traceparent, occurred_at)
SELECT id, %(event_topic)s::text, key, %(event_type)s::text, %(event_version)s::int, payload, %(event_source)s::text,
    subject, traceparent, clock_timestamp() FROM (
    SELECT * FROM unnest(
        %(event_id)b::uuid[], %(event_key)b::text[], %(event_payload)b::bytea[], %(event_subject)b::text[],
        %(event_traceparent)b::text[]
    ) WITH ORDINALITY AS e (id, key, payload, subject, traceparent, place)
    ORDER BY place
) AS envelopes
"""
"""INSERT for events of one kind, which have topic, type, version and source in common and happen as they are written
down; `alike` fills it in. What they need not say one by one is most of what an event costs. Lists are sent in binary
form where they may hold bytes or long texts: as text each is escaped twice, 15 us an event.

Each follows the row it is about where that is joined: `JOIN request ON request.id::text = subject ORDER BY place`.
"""

INSERT_ONE: LiteralString = """
INSERT INTO outbox (id, topic, key, type, version, payload, source, subject, traceparent, occurred_at)
SELECT %(event_id)s::uuid, %(event_topic)s::text, %(event_key)s::text, %(event_type)s::text, %(event_version)s::int,
    %(event_payload)s::bytea, %(event_source)s::text, %(event_subject)s::text, %(event_traceparent)s::text,
    coalesce(%(event_occurred_at)s::timestamptz, clock_timestamp())
"""
"""INSERT for exactly one event; `one` fills it in. Arrays cost several times as much."""


def stamped(insert: LiteralString, at: LiteralString) -> LiteralString:
    """An INSERT whose events happen at this time, given as SQL. A row and its events in ONE statement
    must share one: a sender is erased up to a moment, which must not fall between them (see `erasure`). Raises
    ValueError for a statement that does not name its time exactly once.
    """
    if insert.count(_NOW) != 1:
        raise ValueError(f"The statement does not have {_NOW} exactly once.")
    return insert.replace(_NOW, at)


async def add(connection: Connection, envelopes: Sequence[Envelope]) -> None:
    """Write the envelopes, in this order, in the caller's transaction. Never commits.

    Change the aggregate's row first, then add its events (see INSERT). Raises OutboxFull when the relay cannot drain;
    a payload over 900,000 bytes or a key over 1,024 is refused by the table (psycopg.errors.CheckViolation).
    """
    if not envelopes:
        return
    with refusing():
        if len(envelopes) == 1:
            await connection.execute(INSERT_ONE, one(envelopes[0]))
        else:
            await connection.execute(INSERT, parameters(envelopes))


def parameters(envelopes: Sequence[Envelope]) -> Mapping[str, Any]:
    """The named parameters of INSERT: one list per column."""
    return {
        "id": [envelope.id for envelope in envelopes],
        "topic": [envelope.topic for envelope in envelopes],
        "key": [envelope.key for envelope in envelopes],
        "type": [envelope.type for envelope in envelopes],
        "version": [envelope.version for envelope in envelopes],
        "payload": [envelope.payload for envelope in envelopes],
        "source": [envelope.source for envelope in envelopes],
        "subject": [envelope.subject for envelope in envelopes],
        "traceparent": [envelope.traceparent for envelope in envelopes],
        "occurred_at": [envelope.occurred_at for envelope in envelopes],
    }


def alike(envelopes: Sequence[Envelope]) -> Mapping[str, Any]:
    """The named parameters of INSERT_ALIKE. Raises ValueError when they are not of one kind, are none, or one of them
    says when it happened."""
    if any(envelope.occurred_at is not None for envelope in envelopes):
        raise ValueError("One of these events says when it happened.")
    kinds = {(envelope.topic, envelope.type, envelope.version, envelope.source) for envelope in envelopes}
    if len(kinds) != 1:
        raise ValueError("These events are none, or not of one kind.")
    [(topic, kind, version, source)] = kinds
    return {
        "event_topic": topic,
        "event_type": kind,
        "event_version": version,
        "event_source": source,
        "event_id": [envelope.id for envelope in envelopes],
        "event_key": [envelope.key for envelope in envelopes],
        "event_payload": [envelope.payload for envelope in envelopes],
        "event_subject": [envelope.subject for envelope in envelopes],
        "event_traceparent": [envelope.traceparent for envelope in envelopes],
    }


def one(envelope: Envelope) -> Mapping[str, Any]:
    """The named parameters of INSERT_ONE."""
    return {
        "event_id": envelope.id,
        "event_topic": envelope.topic,
        "event_key": envelope.key,
        "event_type": envelope.type,
        "event_version": envelope.version,
        "event_payload": envelope.payload,
        "event_source": envelope.source,
        "event_subject": envelope.subject,
        "event_traceparent": envelope.traceparent,
        "event_occurred_at": envelope.occurred_at,
    }


class refusing:  # noqa: N801 - a context manager, used as one
    """Turn the trigger's refusal into OutboxFull. The caller's transaction is lost either way."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, psycopg.Error) and error.sqlstate == FULL:
            raise OutboxFull("Too many events wait to be sent; try again later.") from error


async def maintain(connection: Connection, keep: timedelta = REPLAY_WINDOW) -> int:
    """Create the coming days' partitions and drop confirmed ones past the window; how many were dropped.

    For a claimed timer, hourly. A day without its partition costs nothing: its rows go to the default one.
    """
    row = await (await connection.execute("SELECT outbox_maintain(%s)", [keep])).fetchone()
    return int(row[0]) if row is not None else 0


async def send_again(connection: Connection, seqs: Sequence[int]) -> int:
    """Put refused rows back into the outbox under their own ids, once their cause is gone; how many."""
    with refusing():
        cursor = await connection.execute(
            """
            WITH gone AS (DELETE FROM outbox_refused WHERE seq = ANY(%s) RETURNING *)
            INSERT INTO outbox (id, topic, key, type, version, payload, source, subject, traceparent, occurred_at)
            SELECT id, topic, key, type, version, payload, source, subject, traceparent, occurred_at
            FROM gone ORDER BY seq
            """,
            [list(seqs)],
        )
    return cursor.rowcount
