"""A worker's sign of life: a heartbeat and an advisory lock on a connection of its own.

The lock falls the moment the process dies, so its jobs are found at once; the heartbeat goes stale when the process
is frozen, which no lock shows.
"""

import asyncio

import structlog
from psycopg import AsyncConnection, Error, OperationalError

from messaging.database import is_outage
from messaging.errors import Outage
from messaging.ledger import WORKER_SILENT_SECONDS

log = structlog.get_logger(__name__)

BEAT_SECONDS = 1.0


class Presence:
    """Registers this process as a worker of one consumer and keeps saying so until it is closed."""

    def __init__(self, conninfo: str, consumer: str) -> None:
        self._conninfo = conninfo
        self._consumer = consumer
        self._task: asyncio.Task[None] | None = None
        self._connection: AsyncConnection | None = None
        self._last_beat = 0.0
        self._locked = False
        self.worker = 0

    async def open(self) -> int:
        """Draw a worker id and start beating. Raises Outage when the database is away; may be tried again then."""
        try:
            connection = await self._connect()
            try:
                # In one transaction: a start that breaks off leaves no worker behind that never was.
                async with connection.transaction():
                    cursor = await connection.execute(
                        "insert into ledger_workers (consumer) values (%s) returning id", (self._consumer,)
                    )
                    row = await cursor.fetchone()
                    assert row is not None
                    self.worker = row[0]
                    await self._say_alive(connection)
            except BaseException:
                self._locked = False
                await connection.close()
                raise
        except Error as error:
            if not is_outage(error):
                raise
            raise Outage(f"The database cannot be reached: {error}", "database") from error
        self._connection = connection
        self._task = asyncio.create_task(self._beat(), name=f"presence-{self._consumer}")
        return self.worker

    def fresh(self) -> bool:
        """Whether others still take this worker for alive. False after a freeze, until the next heartbeat."""
        return asyncio.get_running_loop().time() - self._last_beat < WORKER_SILENT_SECONDS

    async def close(self) -> None:
        """Stop beating and let the lock go: what is still 'started' under this worker is then a suspect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> AsyncConnection:
        return await AsyncConnection.connect(self._conninfo, autocommit=True)

    async def _say_alive(self, connection: AsyncConnection) -> None:
        await connection.execute("update ledger_workers set beat_at = clock_timestamp() where id = %s", [self.worker])
        self._last_beat = asyncio.get_running_loop().time()
        if not self._locked:
            # Never waited for: our own lost connection may still hold it, and without beats we would pass for dead.
            cursor = await connection.execute(
                "select pg_try_advisory_lock('ledger_workers'::regclass::oid::int, %s::int)", (self.worker,)
            )
            row = await cursor.fetchone()
            self._locked = row is not None and bool(row[0])

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                if self._connection is None or self._connection.closed:
                    self._locked = False
                    self._connection = await self._connect()
                await self._say_alive(self._connection)
            except OperationalError as error:
                log.warning("presence.lost", consumer=self._consumer, error=str(error))
                if self._connection is not None:
                    await self._connection.close()
