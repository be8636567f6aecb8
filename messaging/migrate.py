"""The deploy step's side of the database: roles, numbered SQL files under an advisory lock, least privilege.

    provision   the owner role, the service's role and its database (superuser, or the owner itself)
    migrate     the schema, applied by the owner; the service's role gets DML and no DDL
    verify      what a service does at start: compare, never change

All three are safe to run at once from any number of processes. The first two raise Outage (resource
"database") while Postgres is away.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from messaging.database import Pool, is_outage
from messaging.errors import Misconfigured, Outage, reason
from messaging.ledger import WORKER_SILENT_SECONDS

DIRECTORY = Path(__file__).parent / "migrations"
"""This room's own migrations; every service's database has them."""

OWNER = "workbot_owner"

IDLE_IN_TRANSACTION = f"{WORKER_SILENT_SECONDS:g}s"
"""How long a process may stand still in a transaction before Postgres ends it: no longer than until its jobs are
another's, who would wait for the rows that it holds locked.
"""

_LOCK = 1_987_000
"""Advisory lock of the deploy step, in the database it changes (for roles and databases: `postgres`)."""

_FILE_NAME = re.compile(r"\d{4}_[a-z0-9_]+\.sql")
_ROLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")

_LEDGER = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    name text PRIMARY KEY,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

_RIGHTS = {
    # Events are never rewritten, and who wrote them and in which order is not for the writer to say.
    "outbox": "SELECT, INSERT (id, topic, key, type, version, payload, source, subject, traceparent, occurred_at)",
    "schema_migrations": "SELECT",
    # Who is erased is the owner's to say; the service only knows it, and forgets it after a while.
    "erasures": "SELECT, DELETE",
    # What was asked for stays as it was asked; only the registry's answer may change.
    "schema_ids": "SELECT, INSERT, UPDATE (id, learnt_at)",
}
_ROWS = "SELECT, INSERT, UPDATE, DELETE"

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Migration:
    """One SQL file. `name` holds the room or service it belongs to: ``messaging/0001_outbox.sql``."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def collect(directories: Sequence[Path]) -> list[Migration]:
    """The migrations of this room, then of each directory, by number. Raises Misconfigured for a malformed name."""
    found: list[Migration] = []
    for directory in dict.fromkeys([DIRECTORY, *directories]):
        numbers: set[str] = set()
        for path in sorted(directory.glob("*.sql")):
            if not _FILE_NAME.fullmatch(path.name):
                raise Misconfigured(f"A migration is named NNNN_what.sql, not {path.name}.")
            if path.name[:4] in numbers:
                raise Misconfigured(f"Two migrations of {directory.parent.name} have the number {path.name[:4]}.")
            numbers.add(path.name[:4])
            found.append(Migration(f"{directory.parent.name}/{path.name}", path.read_text("utf-8")))
    return found


def provision(admin_conninfo: str, service: str, password: str, owner_password: str | None = None) -> None:
    """Create or refresh the service's role and its owner-owned database, both named `service`.

    `admin_conninfo` connects as a superuser, or as the owner with CREATEDB and CREATEROLE. A superuser also makes the
    owner role (with `owner_password`, if given). Passwords leave this process as SCRAM verifiers only.
    """
    if not _ROLE_NAME.fullmatch(service) or service.startswith("pg_") or service in {"postgres", OWNER}:
        raise Misconfigured(f"A service's database and role need a plain lower-case name, not {service!r}.")
    with _locked(make_conninfo(admin_conninfo, dbname="postgres")) as connection:
        row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        if row is not None and row[0]:
            _ensure_role(connection, OWNER, owner_password, "CREATEDB CREATEROLE")
            # The watchdog's function runs as the owner and must see whose transaction is open.
            connection.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(OWNER)))
        _ensure_role(connection, service, password, "NOCREATEDB NOCREATEROLE")
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [service]).fetchone() is None:
            connection.execute(
                sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0").format(
                    sql.Identifier(service), sql.Identifier(OWNER)
                )
            )
        for statement in (
            "REVOKE ALL ON DATABASE {0} FROM PUBLIC",
            "GRANT CONNECT ON DATABASE {0} TO {0}",
            "ALTER ROLE {0} IN DATABASE {0} SET idle_in_transaction_session_timeout = {1}",
        ):
            connection.execute(sql.SQL(statement).format(sql.Identifier(service), sql.Literal(IDLE_IN_TRANSACTION)))


def migrate(owner_conninfo: str, directories: Sequence[Path], app_role: str) -> list[str]:
    """Apply what is missing, each file in a transaction of its own; return the names applied.

    Afterwards `app_role` may read and write rows and nothing else; events, once written, it may only read.
    Raises Misconfigured when a file that was applied has changed since.
    """
    applied: list[str] = []
    with _locked(owner_conninfo) as connection:
        connection.execute(_LEDGER)
        recorded = dict(connection.execute("SELECT name, sha256 FROM schema_migrations").fetchall())
        for migration in collect(directories):
            if migration.name in recorded:
                _check_unchanged(migration, recorded[migration.name])
                continue
            with connection.transaction():
                connection.execute(migration.text.encode())
                connection.execute(
                    "INSERT INTO schema_migrations (name, sha256) VALUES (%s, %s)", [migration.name, migration.sha256]
                )
            applied.append(migration.name)
        with connection.transaction():
            _grant(connection, app_role)
    return applied


async def verify(pool: Pool, directories: Sequence[Path]) -> None:
    """Raise Misconfigured unless the database holds every migration this code was written for."""
    async with pool.connection() as connection:
        known = await (await connection.execute("SELECT to_regclass('schema_migrations') IS NOT NULL")).fetchone()
        recorded: dict[str, str] = {}
        if known is not None and known[0]:
            cursor = await connection.execute("SELECT name, sha256 FROM schema_migrations")
            recorded = dict(await cursor.fetchall())
    for migration in collect(directories):
        if migration.name not in recorded:
            raise Misconfigured(f"The database lacks the migration {migration.name}: run `workbot migrate`.")
        _check_unchanged(migration, recorded[migration.name])


def _check_unchanged(migration: Migration, recorded: str) -> None:
    if migration.sha256 != recorded:
        raise Misconfigured(
            f"The migration {migration.name} was changed after it was applied. Restore the file and write a new one."
        )


@contextmanager
def _locked(conninfo: str) -> Iterator[Connection]:
    """A connection in autocommit that holds the deploy lock of its database until it closes."""
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            yield connection
    except psycopg.Error as error:
        if not is_outage(error):
            raise
        raise Outage(f"Postgres does not answer the deploy step: {reason(error)}.", "database") from error


def _ensure_role(connection: Connection, name: str, password: str | None, attributes: str) -> None:
    exists = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone() is not None
    statement = sql.SQL("ALTER ROLE {} LOGIN " if exists else "CREATE ROLE {} LOGIN ").format(sql.Identifier(name))
    if password is not None:
        verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
        statement += sql.SQL("PASSWORD {} ").format(sql.Literal(verifier.decode()))
    if not exists:
        statement += sql.SQL(attributes)
    connection.execute(statement)


def _grant(connection: Connection, app_role: str) -> None:
    """DML on tables, but not on partitions: rows go through the parent and its trigger."""
    role = sql.Identifier(app_role)
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
    connection.execute(sql.SQL("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {}").format(role))
    tables = connection.execute(
        "SELECT relname FROM pg_class"
        " WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition"
    ).fetchall()
    for (table,) in tables:
        rights = sql.SQL(_RIGHTS.get(table, _ROWS))
        connection.execute(sql.SQL("GRANT {} ON {} TO {}").format(rights, sql.Identifier("public", table), role))
