"""One request as the bench files it: with its event, as the gateway does, and without."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock
from uuid import UUID

from psycopg import sql

import services.gateway
from messaging.codec import Codec
from messaging.database import Connection
from messaging.message import Key
from messaging.registry import Registry
from schemas import catalog
from services.gateway import requests
from services.gateway.asks import Ask
from services.gateway.records import NewRequest
from services.gateway.store import requests as store

MIGRATIONS = Path(services.gateway.__file__).parent / "migrations"
TENANT = "bench"
ASK = Ask("The printer on the second floor is jammed", "It says PC LOAD LETTER, whatever that means. " * 5, "IT")

_PLAIN = sql.SQL("with request as ({}) select request_id from request").format(sql.SQL(store.INSERT)).as_bytes(None)


class Rerouted(Codec):
    """The house's codec, but for the topic: nobody else is to hear of these requests."""

    def __init__(self, registry: Registry, topic: str) -> None:
        super().__init__(registry, catalog.contracts())
        for line in self._lines.values():
            line.topic = topic


async def create(conn: Connection, codec: Codec, whose: Key, count: int) -> None:
    """So many requests at once."""
    drafts = [requests.draft(codec, whose, ASK) for _ in range(count)]
    for answer in await requests.create_requests(conn, drafts):
        requests.receipt(answer)


@contextmanager
def no_events() -> Iterator[None]:
    """Requests are filed in this process as ever, but without events: nothing is encoded, and the statement is the
    same less its second half. (The event's dataclass is made all the same, a microsecond of some 300.)"""
    with mock.patch.object(store, "file", _file), mock.patch.object(Codec, "envelope", _nothing):
        yield


def _nothing(*_given: object, **_named: object) -> None: ...


async def _file(conn: Connection, wanted: Sequence[NewRequest], _events: Sequence[object]) -> set[UUID]:
    cursor = await conn.execute(_PLAIN, store.parameters(wanted))
    return {id_ for (id_,) in await cursor.fetchall()}
