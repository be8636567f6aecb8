"""Tasks that nobody awaits: kept until they end, their errors raised in the loop, cancelled together at the end."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any


class Background:
    """The background tasks of one owner. They run in the context it was made in, not in that of a job."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin this soon."""
        task = self._loop.create_task(work, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
