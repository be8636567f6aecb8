"""The documents service on a database of its own: its schema, its role, and its API as the real process."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from psycopg_pool import AsyncConnectionPool

from messaging.codec import Codec
from messaging.database import Pool
from messaging.registry import Registry
from schemas import catalog, deploy
from services.documents.parts import MIGRATIONS, WRITES
from tests.fixtures.processes import Home, Running, migrated, running
from tests.fixtures.stack import Infra


@pytest.fixture(scope="module")
def home(infra: Infra) -> Iterator[Home]:
    with migrated(infra, "documents", MIGRATIONS) as home:
        yield home


@pytest.fixture
async def pool(home: Home) -> AsyncIterator[Pool]:
    """Connections as the service's role, as the worker has them."""
    async with AsyncConnectionPool(home.conninfo, min_size=1, max_size=8, open=False) as pool:
        yield pool


@pytest.fixture
async def codec(infra: Infra) -> AsyncIterator[Codec]:
    """The house's codec, over the real registry."""
    await deploy.register(infra.registry_url)
    registry = Registry(infra.registry_url)
    codec = catalog.codec(registry)
    await codec.prepare(WRITES)
    yield codec
    await registry.close()


@pytest.fixture
def tenant() -> str:
    """A tenant nobody else in the module uses."""
    return f"tenant-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Face:
    """A running process of the service, and where it keeps files."""

    running: Running
    storage: Path

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def pid(self) -> int:
        return self.running.pid

    @property
    def secret(self) -> str:
        return self.running.secret

    def client(self, sub: str, tenant: str, *roles: str) -> httpx.Client:
        """A client signed in as that person (a sender unless said otherwise). Close it."""
        return self.running.client(sub, tenant, *(roles or ["sender"]))

    def files(self) -> list[str]:
        """Every file in its storage, half-written ones included."""
        return sorted(path.name for path in self.storage.rglob("*") if path.is_file())


StartFace = Callable[..., AbstractContextManager[Face]]


@pytest.fixture(scope="module")
def start_process(infra: Infra, home: Home, tmp_path_factory: pytest.TempPathFactory) -> StartFace:
    """`with start_process("api", sender_limit=3) as face`: a process of the service, drained at the end."""
    asyncio.run(deploy.register(infra.registry_url))

    @contextlib.contextmanager
    def start(role: str, storage: Path | None = None, **settings: object) -> Iterator[Face]:
        folder = tmp_path_factory.mktemp(role)
        storage = storage or folder / "storage"
        with running(infra, home, "documents", role, folder, {"storage_dir": storage, **settings}) as process:
            yield Face(process, storage)

    return start


@pytest.fixture(scope="module")
def face(start_process: StartFace) -> Iterator[Face]:
    """The API with small limits, so that tests reach them: 1 MB a file, 64 KiB a JSON body."""
    with start_process("api", max_document_bytes=1_000_000, max_text_bytes=65_536) as face:
        yield face


@pytest.fixture
def sender(face: Face, tenant: str) -> Iterator[httpx.Client]:
    """A sender named ann."""
    with face.client("ann", tenant) as client:
        yield client
