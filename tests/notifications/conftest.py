"""The notifications service on a database of its own: its schema, its role, its process, and events to tell it."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from messaging import outbox
from messaging.codec import Codec
from messaging.database import Pool
from messaging.message import Key
from messaging.registry import Registry
from schemas import catalog, deploy
from schemas.events import (
    DocumentFailed,
    DocumentRead,
    DocumentReceived,
    DocumentReviewed,
    NotificationDeliveryRequested,
    RequestCreated,
)
from services.notifications.parts import MIGRATIONS
from tests.fixtures.processes import Home, Running, migrated, running
from tests.fixtures.stack import Infra

SAYS = (
    RequestCreated,
    DocumentRead,
    DocumentReviewed,
    DocumentFailed,
    DocumentReceived,
    NotificationDeliveryRequested,
)


@pytest.fixture(scope="module")
def home(infra: Infra) -> Iterator[Home]:
    with migrated(infra, "notifications", MIGRATIONS) as home:
        yield home


@pytest.fixture
async def pool(home: Home) -> AsyncIterator[Pool]:
    """Connections as the service's role, as the process has them."""
    async with AsyncConnectionPool(home.conninfo, min_size=1, max_size=25, open=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def deployed(infra: Infra) -> None:
    """The real topics and schemas."""
    asyncio.run(deploy.create_topics(infra.kafka_bootstrap))
    asyncio.run(deploy.register(infra.registry_url))


@pytest.fixture
async def codec(infra: Infra, deployed: None) -> AsyncIterator[Codec]:
    """The house's codec, over the real registry, ready to say what others say."""
    registry = Registry(infra.registry_url)
    codec = catalog.codec(registry)
    await codec.prepare(SAYS)
    yield codec
    await registry.close()


@pytest.fixture
def tenant() -> str:
    """A tenant nobody else in the module uses."""
    return f"tenant-{uuid.uuid4().hex[:8]}"


Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="module")
def start(infra: Infra, home: Home, deployed: None, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """`with start(smtp_host="…") as process`: the process, drained at the end."""

    def starting(**settings: object) -> AbstractContextManager[Running]:
        return running(infra, home, "notifications", "api", tmp_path_factory.mktemp("api"), settings)

    return starting


@pytest.fixture(scope="module")
def face(start: Start) -> Iterator[Running]:
    """The process, with e-mail not set up and no private address allowed."""
    with start() as process:
        yield process


Say = Callable[..., AbstractContextManager[None]]


class Speaker:
    """Says events as the services do that say them: through an outbox, here that of the notifications' own database,
    whose relay carries whatever it finds."""

    def __init__(self, home: Home, codec: Codec) -> None:
        self._home = home
        self._codec = codec

    async def say(self, *events: object) -> list[str]:
        """One transaction; returns the events' ids."""
        envelopes = [
            self._codec.envelope(
                event,
                source="test",
                subject=str(getattr(event, "document_id", getattr(event, "request_id", "none"))),
                key=Key(event.tenant, event.sender),  # type: ignore[attr-defined]
            )
            for event in events
        ]
        async with await psycopg.AsyncConnection.connect(self._home.admin) as conn:
            await outbox.add(conn, envelopes)
        return [str(envelope.id) for envelope in envelopes]


@pytest.fixture
def speaker(home: Home, codec: Codec) -> Speaker:
    return Speaker(home, codec)


def request(
    tenant: str, sender: str = "ann", team: str = "it", title: str = "The printer is jammed"
) -> RequestCreated:
    return RequestCreated(
        request_id=str(uuid.uuid4()), tenant=tenant, sender=sender, team=team, title=title, body="Third floor."
    )


def read(tenant: str, sender: str = "ann", status: str = "approved") -> DocumentRead:
    return DocumentRead(
        document_id=str(uuid.uuid4()),
        tenant=tenant,
        sender=sender,
        status=status,
        fields=(),
        attempts=1,
        model="built-in",
    )


@contextlib.contextmanager
def following(
    client: httpx.Client, last: int | None = None, **query: str
) -> Iterator[Iterator[tuple[int, dict[str, object]]]]:
    """The live stream: (id, notification) as they come; heartbeats and the greeting are passed over."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", "/api/notifications/stream", headers=headers, params=query, timeout=30) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        assert next(lines) == ": hello"

        def events() -> Iterator[tuple[int, dict[str, object]]]:
            number, data = 0, ""
            for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    number = int(value)
                elif name == "data":
                    data = value
                elif not line and data:
                    yield number, json.loads(data)
                    data = ""

        yield events()
