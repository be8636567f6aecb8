"""One request as the bench files it: with its event, as the gateway does, and without."""

from pathlib import Path

from psycopg import sql

import services.gateway
from messaging.codec import Codec
from messaging.database import Connection
from messaging.message import Key, new_id
from messaging.registry import Registry
from schemas import catalog
from services.gateway.records import NewRequest
from services.gateway.requests import Ask, Receipt, create_request
from services.gateway.store import requests as store

MIGRATIONS = Path(services.gateway.__file__).parent / "migrations"
TENANT = "bench"
ASK = Ask("The printer on the second floor is jammed", "It says PC LOAD LETTER, whatever that means. " * 5, "IT")

_PLAIN = (
    sql.SQL("with request as ({}) select exists (select from request)").format(sql.SQL(store.INSERT)).as_bytes(None)
)


class Rerouted(Codec):
    """The house's codec, but for the topic: nobody else is to hear of these requests."""

    def __init__(self, registry: Registry, topic: str) -> None:
        super().__init__(registry, catalog.contracts())
        for line in self._lines.values():
            line.topic = topic


async def with_event(conn: Connection, codec: Codec, whose: Key) -> Receipt:
    """As the gateway does."""
    return await create_request(conn, codec, whose, ASK)


async def without_event(
    conn: Connection, _codec: Codec, whose: Key, ask: Ask = ASK, *, idempotency_key: str | None = None
) -> Receipt:
    """`create_request` with the same statement, less its second half."""
    request = NewRequest(
        id=new_id(),
        tenant=whose.tenant,
        sender=whose.sender,
        team=ask.team,
        title=ask.title,
        body=ask.body,
        channel="api",
        idempotency_key=idempotency_key,
        fingerprint=ask.fingerprint,
    )
    cursor = await conn.execute(_PLAIN, store.parameters(request))
    await cursor.fetchone()
    return Receipt(request.id, repeated=False)
