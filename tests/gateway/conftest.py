"""The gateway on a database of its own: its schema, its role, its processes, and the documents service beside it."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from psycopg_pool import AsyncConnectionPool

from messaging.codec import Codec
from messaging.database import Pool
from messaging.registry import Registry
from schemas import catalog, deploy
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from services.documents import parts as documents_parts
from services.gateway import parts as gateway_parts
from tests.fixtures.processes import Home, Running, migrated, running
from tests.fixtures.stack import Infra


@pytest.fixture(scope="module")
def home(infra: Infra) -> Iterator[Home]:
    """The gateway's database."""
    with migrated(infra, "gateway", gateway_parts.MIGRATIONS) as home:
        yield home


@pytest.fixture(scope="module")
def documents_home(infra: Infra) -> Iterator[Home]:
    """The documents service's database."""
    with migrated(infra, "documents", documents_parts.MIGRATIONS) as home:
        yield home


@pytest.fixture
async def pool(home: Home) -> AsyncIterator[Pool]:
    """Connections as the gateway's worker has them."""
    async with AsyncConnectionPool(home.conninfo, min_size=1, max_size=8, open=False) as pool:
        yield pool


@pytest.fixture
def tenant() -> str:
    """A tenant nobody else in the module uses."""
    return f"tenant-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def source(topic: Callable[..., str]) -> str:
    """A topic with its consumer's retry and dead-letter topics, three partitions each, with the house's limits."""
    name = topic(3)
    for steps, follower in enumerate((f"{name}.reader.retry", f"{name}.reader.dlq"), 1):
        topic(3, {"max.message.bytes": str(MAX_RECORD_BYTES + steps * HEADROOM_BYTES)}, follower)
    return name


Start = Callable[..., AbstractContextManager[Running]]


@pytest.fixture(scope="module")
def deployed(infra: Infra) -> None:
    """The real topics and schemas."""
    asyncio.run(deploy.create_topics(infra.kafka_bootstrap))
    asyncio.run(deploy.register(infra.registry_url))


@pytest.fixture(scope="module")
def start(infra: Infra, home: Home, deployed: None, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """`with start("worker", database_pool=4) as process`: a process of the gateway, drained at the end."""
    group = f"test-{uuid.uuid4().hex}"

    def starting(role: str, **settings: object) -> AbstractContextManager[Running]:
        given = {"dead_letter_group": group} | settings
        return running(infra, home, "gateway", role, tmp_path_factory.mktemp(role), given)

    return starting


@pytest.fixture(scope="module")
def start_documents(
    infra: Infra, documents_home: Home, deployed: None, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """The same for the documents service; its processes share their storage."""
    storage = tmp_path_factory.mktemp("storage")

    def starting(role: str, **settings: object) -> AbstractContextManager[Running]:
        given = {"storage_dir": storage} | settings
        return running(infra, documents_home, "documents", role, tmp_path_factory.mktemp(role), given)

    return starting


@pytest.fixture
async def codec(infra: Infra, deployed: None) -> AsyncIterator[Codec]:
    """The house's codec over the real registry, as the gateway's API has it."""
    registry = Registry(infra.registry_url)
    codec = catalog.codec(registry)
    await codec.prepare(gateway_parts.WRITES)
    yield codec
    await registry.close()
