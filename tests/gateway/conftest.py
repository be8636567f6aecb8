"""The gateway on a database of its own: its schema, its role, its processes, and the documents service beside it."""

import asyncio
import contextlib
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
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from messaging import migrate
from messaging.database import Pool
from messaging.settings import inherited_environment
from schemas import deploy
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from services.documents import parts as documents_parts
from services.gateway.parts import MIGRATIONS
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Infra
from web import tokens

SECRET = secrets.token_hex(32)


@dataclass(frozen=True)
class Home:
    """A service's migrated database; `conninfo` is the service's role, `admin` the superuser."""

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


@contextlib.contextmanager
def migrated(infra: Infra, service: str, migrations: Path) -> Iterator[Home]:
    """A database with its role, both dropped afterwards."""
    name, password = f"{service}_{uuid.uuid4().hex[:10]}", secrets.token_hex(16)
    migrate.provision(infra.admin_conninfo, name, password)
    admin = make_conninfo(infra.admin_conninfo, dbname=name)
    migrate.migrate(make_conninfo(admin, options=f"-c role={migrate.OWNER}"), [migrations], name)
    yield Home(name, password, make_conninfo(admin, user=name, password=password), admin)
    with psycopg.connect(infra.admin_conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def home(infra: Infra) -> Iterator[Home]:
    """The gateway's database."""
    with migrated(infra, "gateway", MIGRATIONS) as home:
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


def token(sub: str, tenant: str, *roles: str) -> str:
    """A token of that person (an admin unless said otherwise)."""
    return tokens.issue(SECRET, sub, tenant, roles or ["admin"], 600)


@dataclass(frozen=True)
class Running:
    """A process that answers."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def client(self, sub: str, tenant: str, *roles: str) -> httpx.Client:
        """A client signed in as that person (an admin unless said otherwise). Close it."""
        headers = {"Authorization": f"Bearer {token(sub, tenant, *roles)}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()


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
        return _running(infra, home, "services.gateway.main", role, tmp_path_factory.mktemp(role), given)

    return starting


@pytest.fixture(scope="module")
def start_documents(
    infra: Infra, documents_home: Home, deployed: None, tmp_path_factory: pytest.TempPathFactory
) -> Start:
    """The same for the documents service; its processes share their storage."""
    storage = tmp_path_factory.mktemp("storage")

    def starting(role: str, **settings: object) -> AbstractContextManager[Running]:
        given = {"storage_dir": storage} | settings
        return _running(infra, documents_home, "services.documents.main", role, tmp_path_factory.mktemp(role), given)

    return starting


@contextlib.contextmanager
def _running(
    infra: Infra, home: Home, module: str, role: str, folder: Path, settings: dict[str, object]
) -> Iterator[Running]:
    (folder / "token.key").write_text(SECRET)
    (folder / "db.pw").write_text(home.password)
    server = conninfo_to_dict(home.conninfo)
    port = free_port()
    given = {
        "port": port,
        "kafka_bootstrap": infra.kafka_bootstrap,
        "registry_url": infra.registry_url,
        "database_url": f"postgresql://{home.name}@{server['host']}:{server['port']}/{home.name}",
        "database_password_file": folder / "db.pw",
        "token_secret_file": folder / "token.key",
    } | settings
    environment = inherited_environment() | {f"WORKBOT_{name.upper()}": str(value) for name, value in given.items()}
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, role], env=environment, stderr=output, cwd=folder
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process, log)
        yield Running(url, process, log)
    finally:
        killed = process.poll() is not None
        if not killed:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
    if not killed:
        assert process.returncode == 0, log.read_text()
    assert "process.fault" not in log.read_text()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
