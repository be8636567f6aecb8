"""Connections to Postgres. Every URL and password goes through here; neither is ever logged."""

import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from psycopg import AsyncConnection, InterfaceError, OperationalError
from psycopg.conninfo import make_conninfo
from psycopg.errors import IdleInTransactionSessionTimeout
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests
from psycopg_pool.pool_async import AddConnection, MaintenanceTask

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


def make_pool(settings: ProcessSettings, application: str, *, autocommit: bool = False) -> Pool:
    """A pool that is not open yet (`await pool.open()`). Connections are checked before they are lent.

    With `autocommit` each statement is a transaction of its own, without the round trips of BEGIN and COMMIT.
    """
    return _CheckedPool(
        conninfo(settings.database_url, settings.database_password_file, application),
        kwargs={"autocommit": autocommit},
        min_size=2,
        max_size=settings.database_pool,
        open=False,
        timeout=10.0,
        name=application,
    )


RECONNECT_SECONDS = 1.0
"""Longest pause between two tries to connect."""


class _CheckedPool(AsyncConnectionPool[Connection]):
    """Lends no connection that the server has closed, and asks it nothing to know: a farewell waits to be read there.

    The pool's own check costs a round trip each time, and after a restart of Postgres it waits seconds between two
    dead connections. It would also try to connect ever more seldom, twice as long each time, and so be of no use for
    as long again as a server was away.
    """

    async def schedule_task(self, task: MaintenanceTask, delay: float) -> None:
        if isinstance(task, AddConnection):
            delay = min(delay, RECONNECT_SECONDS)
        await super().schedule_task(task, delay)

    async def getconn(self, timeout: float | None = None) -> Connection:
        while True:
            connection = await super().getconn(timeout)
            poll = select.poll()
            poll.register(connection.fileno(), select.POLLIN)
            if not poll.poll(0):
                return connection
            await connection.close()
            await self.putconn(connection)


@asynccontextmanager
async def single_statements(pool: Pool) -> AsyncIterator[Connection]:
    """A pooled connection on which each statement is a transaction of its own, without BEGIN's and COMMIT's trips."""
    async with pool.connection() as connection:
        if connection.autocommit:
            yield connection
            return
        try:
            # Inside: the loop may turn, and the task be cancelled, when it is set already.
            await connection.set_autocommit(True)
            yield connection
        finally:
            if connection.info.transaction_status is TransactionStatus.IDLE:
                await connection.set_autocommit(False)
            else:
                # Cancelled in the middle of something, or broken. To set it would raise, and so take the
                # cancellation's place: a task that is to end would go on.
                await connection.close()


def may_be_done(error: BaseException) -> bool:
    """Whether the connection broke under a statement: it may have been committed, and only its answer be lost."""
    no_connection = isinstance(error, PoolClosed | PoolTimeout | TooManyRequests)
    return isinstance(error, OperationalError) and error.sqlstate is None and not no_connection


def is_outage(error: BaseException) -> bool:
    """Whether the database is away or refusing everybody, as opposed to one statement failing.

    No SQLSTATE: the connection broke or none could be had. Class 08: connection; 53: out of a resource; 57P: shut
    down, crashed or starting. One that stood still in a transaction has lost its connection and what it did there. A
    statement's own fault (deadlock, time-out) is not an outage.
    """
    if isinstance(error, InterfaceError | IdleInTransactionSessionTimeout):
        return True
    if not isinstance(error, OperationalError):
        return False
    state = error.sqlstate
    return state is None or state.startswith(("08", "53", "57P"))
