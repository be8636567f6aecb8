"""Requests: filed with their event in one statement, listed by tenant, sender and team."""

from dataclasses import asdict, fields
from typing import Any, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from messaging import outbox
from messaging.database import Connection
from messaging.message import Envelope
from services.gateway.records import Earlier, Filed, NewRequest, Wanted

INSERT: LiteralString = """
insert into requests (id, tenant, sender, team, title, body, channel, idempotency_key, fingerprint)
values (%(request_id)s, %(tenant)s, %(sender)s, %(team)s, %(title)s, %(body)s, %(channel)s, %(idempotency_key)s,
        %(fingerprint)s)
on conflict (tenant, sender, idempotency_key) where idempotency_key is not null do nothing
returning id, created_at
"""
"""The request alone; `parameters` fills it in. No row comes back when its idempotency key was used before."""

_PARTS = {
    "columns": sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(Filed)),
    "add_request": sql.SQL(INSERT),
    "add_event": sql.SQL(outbox.stamped(outbox.INSERT_ONE, "request.created_at")),
}


def _query(text: LiteralString) -> bytes:
    return sql.SQL(text).format(**_PARTS).as_bytes(None)


_FILE = _query("""
with request as ({add_request}), event as ({add_event} from request)
select exists (select from request)
""")

_EARLIER = _query("""
select id, fingerprint from requests where tenant = %s and sender = %s and idempotency_key = %s
""")

_GET = _query("select {columns} from requests where id = %s and tenant = %s")

_PAGE = {
    "sender": sql.SQL("sender = %(sender)s"),
    "team": sql.SQL("team = %(team)s"),
    "before": sql.SQL("id < %(before)s"),
}


async def file(conn: Connection, request: NewRequest, event: Envelope) -> bool:
    """Write the request and its event in one statement, or nothing; whether it was written.

    False: this sender used the idempotency key before. Raises OutboxFull.
    """
    with outbox.refusing():
        cursor = await conn.execute(_FILE, {**parameters(request), **outbox.one(event)})
    row = await cursor.fetchone()
    assert row is not None
    return bool(row[0])


def parameters(request: NewRequest) -> dict[str, Any]:
    """The named parameters of INSERT."""
    return {
        "request_id": request.id,
        "tenant": request.tenant,
        "sender": request.sender,
        "team": request.team,
        "title": request.title,
        "body": request.body,
        "channel": request.channel,
        "idempotency_key": request.idempotency_key,
        "fingerprint": request.fingerprint,
    }


async def earlier(conn: Connection, tenant: str, sender: str, key: str) -> Earlier | None:
    """What this sender filed under the idempotency key."""
    cursor = conn.cursor(row_factory=class_row(Earlier))
    return await (await cursor.execute(_EARLIER, (tenant, sender, key))).fetchone()


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
