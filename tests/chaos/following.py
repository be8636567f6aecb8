"""Beside a run: its work is handed in, and how much of it has ended is asked again and again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import psycopg

Count = Callable[["psycopg.AsyncConnection[tuple[Any, ...]]"], Awaitable[int]]

_COUNT_SECONDS = 0.25


class Following:
    """Runs `handing_in` from now on, and asks the database by `count`. Stop it."""

    def __init__(self, handing_in: Coroutine[Any, Any, None], database: str, count: Count) -> None:
        self._ended = 0
        self._database = database
        self._count = count
        self._handing_in = asyncio.create_task(handing_in, name="hand-in")
        self._counting = asyncio.create_task(self._ask(), name="count")

    def ended(self) -> int:
        """How much has ended, a moment ago; the last known number while the database is away. Raises what handing in
        fails of.
        """
        for task in (self._handing_in, self._counting):
            if task.done():
                task.result()
        return self._ended

    def handed_in(self) -> bool:
        """Whether everything was."""
        return self._handing_in.done()

    async def stop(self) -> None:
        """Hand no more in."""
        tasks = (self._handing_in, self._counting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                async with await psycopg.AsyncConnection.connect(self._database, autocommit=True) as conn:
                    self._ended = await self._count(conn)
            await asyncio.sleep(_COUNT_SECONDS)


class FollowedLoad:
    """What loads that are followed have in common. Entering sets `_following`, and `_stack` with all to be closed."""

    jobs: int
    _following: Following
    _stack: AsyncExitStack

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def progress(self) -> int:
        """How much has ended, a moment ago; the last known number while the database is away."""
        return self._following.ended()

    async def settled(self) -> bool:
        """Whether everything was handed in and accepted, and has ended."""
        return self._following.handed_in() and await self.progress() >= self.jobs
