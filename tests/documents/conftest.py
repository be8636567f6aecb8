"""The documents service on a database of its own: its schema, its role, and its API as the real process."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from messaging import migrate
from messaging.codec import Codec
from messaging.database import Pool
from messaging.registry import Registry
from messaging.settings import inherited_environment
from schemas import catalog, deploy
from services.documents.parts import MIGRATIONS, WRITES
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Infra
from web import tokens


@dataclass(frozen=True)
class Home:
    """A migrated database; `conninfo` is the service's role, `admin` the superuser."""

    name: str
    password: str
    conninfo: str
    admin: str

    def rows(self, query: str, *parameters: object) -> list[tuple[object, ...]]:
        """Ask the database something, as the superuser."""
        with psycopg.connect(self.admin, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def change(self, statement: str, *parameters: object) -> None:
        """Change something behind the service's back."""
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(statement.encode(), parameters)


@pytest.fixture(scope="module")
def home(infra: Infra) -> Iterator[Home]:
    name, password = f"documents_{uuid.uuid4().hex[:10]}", secrets.token_hex(16)
    migrate.provision(infra.admin_conninfo, name, password)
    admin = make_conninfo(infra.admin_conninfo, dbname=name)
    migrate.migrate(make_conninfo(admin, options=f"-c role={migrate.OWNER}"), [MIGRATIONS], name)
    yield Home(name, password, make_conninfo(admin, user=name, password=password), admin)
    with psycopg.connect(infra.admin_conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


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
    """A running API process."""

    url: str
    pid: int
    secret: str
    storage: Path

    def client(self, sub: str, tenant: str, *roles: str) -> httpx.Client:
        """A client signed in as that person (a sender unless said otherwise). Close it."""
        token = tokens.issue(self.secret, sub, tenant, roles or ["sender"], 600)
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

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
        secret = secrets.token_hex(32)
        (folder / "token.key").write_text(secret)
        (folder / "db.pw").write_text(home.password)
        parts = psycopg.conninfo.conninfo_to_dict(home.conninfo)
        port = free_port()
        environment = inherited_environment() | {
            "WORKBOT_PORT": str(port),
            "WORKBOT_KAFKA_BOOTSTRAP": infra.kafka_bootstrap,
            "WORKBOT_REGISTRY_URL": infra.registry_url,
            "WORKBOT_DATABASE_URL": f"postgresql://{home.name}@{parts['host']}:{parts['port']}/{home.name}",
            "WORKBOT_DATABASE_PASSWORD_FILE": str(folder / "db.pw"),
            "WORKBOT_TOKEN_SECRET_FILE": str(folder / "token.key"),
            "WORKBOT_STORAGE_DIR": str(storage),
        }
        environment |= {f"WORKBOT_{name.upper()}": str(value) for name, value in settings.items()}
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "services.documents.main", role],
                env=environment,
                stderr=log,
                cwd=folder,
            )
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(url, process, folder / "log")
            yield Face(url, process.pid, secret, storage)
        finally:
            os.kill(process.pid, signal.SIGTERM)
            try:
                code = process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert code == 0, (folder / "log").read_text()
        assert "process.fault" not in (folder / "log").read_text()

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


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
