"""Requests: filed with their events in one statement, listed by tenant, sender and team."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from messaging import outbox
from messaging.database import Connection
from messaging.message import Envelope
from services.gateway.records import Earlier, Filed, NewRequest, OnceKey, Wanted

INSERT: LiteralString = """
insert into requests (id, tenant, sender, team, title, body, channel, idempotency_key, fingerprint)
select id, tenant, sender, team, title, body, channel, idempotency_key, fingerprint from unnest(
    %(request_id)b::uuid[], %(tenant)b::text[], %(sender)b::text[], %(team)b::text[], %(title)b::text[],
    %(body)b::text[], %(channel)b::text[], %(idempotency_key)b::text[], %(fingerprint)b::bytea[]
) with ordinality
    as asked (id, tenant, sender, team, title, body, channel, idempotency_key, fingerprint, place)
order by place
on conflict (tenant, sender, idempotency_key) where idempotency_key is not null do nothing
returning id as request_id, created_at
"""
"""The requests alone; `parameters` fills it in. No row comes back for one whose idempotency key was used before."""

_PARTS = {
    "columns": sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(Filed)),
    "add_requests": sql.SQL(INSERT),
    "add_events": sql.SQL(outbox.stamped(outbox.INSERT_ALIKE, "request.created_at")),
}


def _query(text: LiteralString) -> bytes:
    return sql.SQL(text).format(**_PARTS).as_bytes(None)


_FILE = _query("""
with request as ({add_requests}),
    event as ({add_events} join request on request_id::text = subject order by place)
select request_id from request
""")

_EARLIER = _query("""
select tenant, sender, idempotency_key, id, fingerprint from requests
join unnest(%s::text[], %s::text[], %s::text[]) as asked (tenant, sender, idempotency_key)
    using (tenant, sender, idempotency_key)
""")

_GET = _query("select {columns} from requests where id = %s and tenant = %s")

_PAGE = {
    "sender": sql.SQL("sender = %(sender)s"),
    "team": sql.SQL("team = %(team)s"),
    "before": sql.SQL("id < %(before)s"),
}


async def file(conn: Connection, requests: Sequence[NewRequest], events: Sequence[Envelope]) -> set[UUID]:
    """Write requests in this order, each with its event, in one statement; the ids of those that were written.

    Left out, with its event: one whose sender used the idempotency key before. Raises OutboxFull.
    """
    with outbox.refusing():
        cursor = await conn.execute(_FILE, {**parameters(requests), **outbox.alike(events)})
    return {id_ for (id_,) in await cursor.fetchall()}


def parameters(requests: Sequence[NewRequest]) -> dict[str, Any]:
    """The named parameters of INSERT: one list per column."""
    return {
        "request_id": [request.id for request in requests],
        "tenant": [request.tenant for request in requests],
        "sender": [request.sender for request in requests],
        "team": [request.team for request in requests],
        "title": [request.title for request in requests],
        "body": [request.body for request in requests],
        "channel": [request.channel for request in requests],
        "idempotency_key": [request.idempotency_key for request in requests],
        "fingerprint": [request.fingerprint for request in requests],
    }


async def earlier(conn: Connection, keys: Collection[OnceKey]) -> dict[OnceKey, Earlier]:
    """What was filed under these idempotency keys before."""
    cursor = await conn.execute(_EARLIER, [list(part) for part in zip(*keys, strict=True)])
    return {OnceKey(*key): Earlier(id_, fingerprint) for *key, id_, fingerprint in await cursor.fetchall()}


async def get(conn: Connection, tenant: str, request_id: UUID) -> Filed | None:
    """A tenant's request."""
    cursor = conn.cursor(row_factory=class_row(Filed))
    return await (await cursor.execute(_GET, (request_id, tenant))).fetchone()


async def page(conn: Connection, tenant: str, wanted: Wanted, limit: int) -> list[Filed]:
    """A tenant's requests, newest first."""
    given = asdict(wanted)
    conditions = [
        sql.SQL("tenant = %(tenant)s"),
        *(condition for name, condition in _PAGE.items() if given[name] is not None),
    ]
    query = sql.SQL("select {columns} from requests where {where} order by id desc limit %(limit)s").format(
        columns=_PARTS["columns"], where=sql.SQL(" and ").join(conditions)
    )
    cursor = conn.cursor(row_factory=class_row(Filed))
    await cursor.execute(query, {**given, "tenant": tenant, "limit": limit})
    return await cursor.fetchall()
