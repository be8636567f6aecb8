"""Connections to Postgres. Every URL and password goes through here; neither is ever logged."""

from pathlib import Path

from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

from messaging.settings import ProcessSettings, read_secret

Connection = AsyncConnection[TupleRow]
Pool = AsyncConnectionPool[Connection]


def conninfo(url: str, password_file: Path | None, application: str) -> str:
    """A libpq connection string. TCP keepalive 5/3/3: a dead peer is noticed within about 15 seconds."""
    extra: dict[str, str | int] = {
        "application_name": application,
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    }
    if password_file is not None:
        extra["password"] = read_secret(password_file, "the database password")
    return make_conninfo(url, **extra)


def make_pool(settings: ProcessSettings, application: str) -> Pool:
    """A pool that is not open yet (`await pool.open()`). Connections are checked before they are lent."""
    return AsyncConnectionPool(
        conninfo(settings.database_url, settings.database_password_file, application),
        min_size=2,
        max_size=settings.database_pool,
        open=False,
        check=AsyncConnectionPool.check_connection,
        timeout=10.0,
        name=application,
    )
