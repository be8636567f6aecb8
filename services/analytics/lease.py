"""Which process counts: a session advisory lock, on the connection that all tries are written through.

Whoever cannot write a try does not begin one. So a process that has lost its connection, and with it the lock, stops
by itself; it goes on only when the lock is its own again.
"""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
from psycopg import AsyncConnection, Error

from messaging.database import Connection, is_outage
from messaging.errors import MessagingError

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0
CLOSE_SECONDS = 2.0
REGAIN_SECONDS = 20.0
"""How long our own lost connection may still hold the lock: until its server notices, by TCP's keepalive."""

_LOCK_CLASS = 1989

T = TypeVar("T")


class LostLease(MessagingError):
    """Another process counts now; this one must end, and may stand by anew."""


class Lease:
    """One process's claim to count in the name of a group."""

    def __init__(self, conninfo: str, group: str) -> None:
        self._conninfo = conninfo
        self._key = zlib.crc32(group.encode()) & 0x7FFFFFFF
        self._connection: Connection | None = None
        self._one_at_a_time = asyncio.Lock()
        self._under_way: set[asyncio.Future[Any]] = set()

    async def take(self) -> None:
        """Stand by until the lock is ours, however long; waits out an outage of the database."""
        while not await self._tried():  # noqa: ASYNC110 - the lock lies in the database
            await asyncio.sleep(LOOK_SECONDS)

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do something in the database as the one who counts. Waits out an outage, then does it (again).

        Raises LostLease when somebody else has the lock by then.
        """
        # Shielded: a statement under way is ended, not left in doubt, when the stream is cancelled.
        running = asyncio.ensure_future(self._run(work))
        self._under_way.add(running)
        running.add_done_callback(self._under_way.discard)
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Let go. What is under way may end within CLOSE_SECONDS; during an outage it would not."""
        if running := set(self._under_way):
            _, late = await asyncio.wait(running, timeout=CLOSE_SECONDS)
            for one in late:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        async with self._one_at_a_time:
            await self._drop()

    async def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._one_at_a_time:
            pause = FIRST_PAUSE
            while True:
                try:
                    if self._connection is None:
                        await self._regain()
                    assert self._connection is not None
                    return await work(self._connection)
                except Error as error:
                    if not is_outage(error):
                        raise
                    log.warning("analytics.database_away", error=str(error))
                    await self._drop()
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    async def _tried(self) -> bool:
        async with self._one_at_a_time:
            try:
                return await self._claim()
            except Error as error:
                if not is_outage(error):
                    raise
                log.warning("analytics.database_away", error=str(error))
                await self._drop()
                return False

    async def _regain(self) -> None:
        deadline = time.monotonic() + REGAIN_SECONDS
        while not await self._claim():
            if time.monotonic() > deadline:
                raise LostLease("Another process counts events now.")
            await asyncio.sleep(LOOK_SECONDS)

    async def _claim(self) -> bool:
        if self._connection is None:
            self._connection = await AsyncConnection.connect(self._conninfo, autocommit=True)
        cursor = await self._connection.execute("select pg_try_advisory_lock(%s, %s)", (_LOCK_CLASS, self._key))
        row = await cursor.fetchone()
        return row is not None and bool(row[0])

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
