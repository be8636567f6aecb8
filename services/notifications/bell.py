"""Waking those who follow along, in this process and in others, whoever wrote the notification.

A NOTIFY within each writing transaction would line up all commits of the database behind one lock. So it is sent
after the commit, for all tenants of the last moment at once; one that a crash swallows is made good by the sweep of
those who listen.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

import psycopg
import structlog
from psycopg import AsyncConnection

from messaging.background import Background
from messaging.database import Pool, single_statements

CHANNEL = "notifications"
GATHER_SECONDS = 0.01
"""How long tenants are gathered before they are named in one NOTIFY."""

PAYLOAD_BYTES = 7900
"""PostgreSQL takes less than 8,000."""

SWEEP_SECONDS = 2.0
"""How often everybody looks whether or not the bell rang."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0

log = structlog.get_logger(__name__)


class Ringer:
    """Names tenants who were told something."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tenants: set[str] = set()
        self._any = asyncio.Event()
        self._background = Background()

    def start(self) -> None:
        """Ring from now on."""
        self._background.spawn(self._run())

    async def stop(self) -> None:
        """What has not been rung by now is found by the sweep."""
        await self._background.close()

    def ring(self, tenant: str) -> None:
        """The tenant was told something, and it is committed."""
        self._tenants.add(tenant)
        self._any.set()

    async def _run(self) -> None:
        while True:
            await self._any.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._any.clear()
            tenants, self._tenants = self._tenants, set()
            try:
                async with single_statements(self._pool) as conn:
                    for payload in payloads(tenants):
                        await conn.execute("select pg_notify(%s, %s)", (CHANNEL, payload))
            except psycopg.Error as error:
                log.warning("bell.not_rung", tenants=len(tenants), error=str(error))


class Listener:
    """The process's one listening connection. `wake` is called with tenants, or with None for everybody."""

    def __init__(self, conninfo: str, wake: Callable[[Iterable[str] | None], None]) -> None:
        self._conninfo = conninfo
        self._wake = wake
        self._background = Background()

    def start(self) -> None:
        """Listen and sweep from now on."""
        self._background.spawn(self._listen())
        self._background.spawn(self._sweep())

    async def stop(self) -> None:
        """Hear nothing more."""
        await self._background.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._wake(None)

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async with await AsyncConnection.connect(self._conninfo, autocommit=True) as conn:
                    await conn.execute(f"LISTEN {CHANNEL}")
                    pause = _FIRST_PAUSE
                    # What was rung while nobody listened.
                    self._wake(None)
                    async for note in conn.notifies():
                        self._wake(note.payload.split("\n"))
                log.warning("bell.silent", error="the connection ended")
            except psycopg.Error as error:
                log.warning("bell.silent", error=str(error))
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)


def payloads(tenants: Iterable[str]) -> Iterator[str]:
    """Pure: the tenants, a line each, in as few texts as NOTIFY takes."""
    lines: list[str] = []
    size = 0
    for tenant in sorted(tenants):
        size += len(tenant.encode()) + 1
        if lines and size > PAYLOAD_BYTES:
            yield "\n".join(lines)
            lines, size = [], len(tenant.encode()) + 1
        lines.append(tenant)
    if lines:
        yield "\n".join(lines)
