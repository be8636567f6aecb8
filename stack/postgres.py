"""PostgreSQL 18 as a child: on loopback, password only, made for logical decoding."""

import os
import shutil
import signal
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from messaging.settings import read_secret
from stack import keys
from stack.child import Child
from stack.guarded import finish
from stack.layout import Layout
from stack.pghome import PostgresHome

ADMIN = "postgres"

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": "300",
    "max_prepared_transactions": "20",
    "shared_buffers": "128MB",
    "jit": "off",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] %d %a ",
    # A statement that fails is logged without its text: it may hold a password.
    "log_min_error_statement": "panic",
}
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}


class Postgres:
    """The server of one data directory."""

    def __init__(self, layout: Layout, home: PostgresHome, port: int) -> None:
        self._layout = layout
        self._home = home
        self._password_file = keys.path(layout, "db-admin.pw")
        self.port = port

    def admin_conninfo(self, database: str = "postgres") -> str:
        """A connection string of the superuser, password included: never log it."""
        return make_conninfo(
            host="127.0.0.1",
            port=self.port,
            user=ADMIN,
            dbname=database,
            password=read_secret(self._password_file, "the database superuser's password"),
            connect_timeout=5,
            application_name="workbot-stack",
        )

    def child(self) -> Child:
        options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return Child(
            name="postgres",
            command=(self._home.program("postgres"), "-D", str(self._home.data), "-p", str(self.port), *options),
            address=f"127.0.0.1:{self.port}",
            ports=(self.port,),
            environment=_ENVIRONMENT,
            prepare=self._prepare,
            probe=self._probe,
            user=self._home.user,
            stop_signal=signal.SIGINT,
            last_signal=signal.SIGQUIT,
        )

    async def _probe(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.admin_conninfo(), autocommit=True) as connection:
            await connection.execute("SELECT 1")

    async def _prepare(self) -> None:
        if (self._home.data / "PG_VERSION").exists():
            forget_stale_pid(self._home.data)
        else:
            await self._initdb()

    async def _initdb(self) -> None:
        """Make the cluster aside and rename it: one that was interrupted is never mistaken for a whole one."""
        fresh = self._home.data.with_name(f"{self._home.data.name}.new")
        password = self._home.data.with_name(f"{self._home.data.name}.pw")
        shutil.rmtree(fresh, ignore_errors=True)
        password.unlink(missing_ok=True)
        fresh.mkdir(mode=0o700)
        user = self._home.user
        password.touch(mode=0o600, exist_ok=False)
        password.write_text(read_secret(self._password_file, "the database superuser's password"), "ascii")
        try:
            if user is not None:
                os.chown(fresh, user.uid, user.gid)
                os.chown(password, user.uid, user.gid)
            initdb = (
                *(self._home.program("initdb"), "-D", str(fresh), "-U", ADMIN, f"--pwfile={password}"),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"),
                *("--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            )
            await finish(
                Child(name="initdb", command=initdb, environment=_ENVIRONMENT, user=user), self._layout, "postgres"
            )
        finally:
            password.unlink(missing_ok=True)
        fresh.rename(self._home.data)


def forget_stale_pid(data: Path) -> None:
    """Remove a postmaster.pid whose number now belongs to another program; Postgres itself sees to a dead one."""
    path = data / "postmaster.pid"
    try:
        pid = int(path.read_text("ascii").split("\n", 1)[0])
        program = Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
    except (FileNotFoundError, ValueError):
        return
    if program != "postgres":
        path.unlink()
