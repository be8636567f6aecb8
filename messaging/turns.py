"""Runs jobs one after another in one task, a turn, for as long as none of them has to wait.

A job that ends at once costs no task of its own. One that waits keeps the task it began in, so that timeouts and
cancellation mean what they mean in any task, and the others go on in others. While jobs are of the waiting kind, each
start gets a task at once; the first that ends without waiting brings the turns back. Every job has a context of its
own: what it sets (the trace, the logger's fields) ends with it.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from typing import Any

from messaging.entries import Partition
from messaging.runs import Run

Work = Coroutine[Any, Any, None]

TURN_SECONDS = 0.001
"""How long a turn goes on before the loop serves others."""


class Turns:
    """Carries out, by `work`, the runs that `begin` gives, until it gives None.

    An error that `work` raises ends its task and is raised in the loop.
    """

    def __init__(self, begin: Callable[[], Run | None], work: Callable[[Run], Work]) -> None:
        self._begin = begin
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._tasks: dict[asyncio.Task[None], Partition] = {}
        self._turn: asyncio.Task[None] | None = None
        self._waiting_kind = False

    def __len__(self) -> int:
        """Runs that have a task of their own: those that wait, and those about to begin in one."""
        return len(self._tasks)

    def go(self) -> None:
        """Something may be ready: start it. Cheap when called too often."""
        if not self._waiting_kind:
            if self._turn is None:
                self._turn = self._task(self._take_turn())
            return
        while (run := self._begin()) is not None:
            self._tasks[self._task(self._alone(run))] = run.entry.partition

    async def drain(self, partitions: Iterable[Partition], seconds: float) -> bool:
        """Wait up to `seconds` for the runs of these partitions to end. False: some go on."""
        wanted = set(partitions)
        deadline = monotonic() + seconds
        while tasks := [task for task, partition in self._tasks.items() if partition in wanted]:
            left = deadline - monotonic()
            if left <= 0:
                return False
            await asyncio.wait(tasks, timeout=left)
        return True

    async def cancel_all(self) -> None:
        """Cancel every run that waits, and wait for their ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _take_turn(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends = monotonic() + TURN_SECONDS
        while (run := self._begin()) is not None:
            work = self._work(run)
            context = self._context.copy()
            try:
                awaited = context.run(work.send, None)
            except StopIteration:
                if monotonic() < ends and not task.cancelling():
                    continue
                # A task that somebody in it has cancelled is not for the next job.
                self._turn = self._task(self._take_turn())
                return
            self._turn = None
            self._waiting_kind = True
            self._tasks[task] = run.entry.partition
            self.go()
            await _rest(work, awaited, context)
            return
        self._turn = None

    async def _alone(self, run: Run) -> None:
        work = self._work(run)
        context = self._context.copy()
        try:
            awaited = context.run(work.send, None)
        except StopIteration:
            self._waiting_kind = False
            self.go()
            return
        await _rest(work, awaited, context)

    def _task(self, work: Work) -> asyncio.Task[None]:
        task = self._loop.create_task(work, context=self._context)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if self._turn is task:
            self._turn = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


@types.coroutine
def _rest(work: Work, awaited: object, context: Context) -> Generator[object, object, None]:
    """Carry on with work that has begun and waits for `awaited`, in its context, to its end."""
    while True:
        try:
            answer = yield awaited
        except BaseException as error:
            step: Callable[[], object] = partial(work.throw, error)
        else:
            step = partial(work.send, answer)
        try:
            awaited = context.run(step)
        except StopIteration:
            return
