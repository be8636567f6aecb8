"""Single requests become batches without waiting for more: what arrives during one batch makes the next."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from messaging.errors import NoTurn

_LOOK_SECONDS = 0.5
"""How often those whose turn does not come are looked at."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Ways(NamedTuple):
    """How a batch that hangs is got round.

    patience  seconds after which it no longer holds up the next
    most      batches at once
    wait      seconds an item waits for its batch to begin, while so many hang; then it is given up
    """

    patience: float
    most: int
    wait: float


ONE_AT_A_TIME = Ways(patience=float("inf"), most=1, wait=float("inf"))


class _Waiting(NamedTuple, Generic[Item, Answer]):
    item: Item
    answer: "asyncio.Future[Answer]"
    since: float


class Batcher(Generic[Item, Answer]):
    """Collects items and gives them to `work` in batches of up to `limit`, one batch at a time unless told
    other `ways`.

    `work` answers each item, in order. When it raises, every item of that batch raises the same. Given ways round
    what hangs, an item whose caller has gone before its batch begins is not worked on. Without them it is: the end of
    a run is recorded also when the run was cancelled.
    """

    def __init__(
        self, work: Callable[[list[Item]], Awaitable[list[Answer]]], limit: int = 500, ways: Ways = ONE_AT_A_TIME
    ) -> None:
        self._work = work
        self._limit = limit
        self._ways = ways
        self._items: deque[_Waiting[Item, Answer]] = deque()
        self._drains: asyncio.Task[None] | None = None
        self._hanging: set[asyncio.Task[None]] = set()
        self._looking = False

    async def submit(self, item: Item) -> Answer:
        """The answer to one item, once its batch is done.

        Raises NoTurn when it was given up (see `Ways`).
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._items.append(_Waiting(item, answer, time.monotonic()))
        self._go_on()
        return await answer

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while under_way := self._hanging | ({self._drains} if self._drains is not None else set()):
            await asyncio.wait(under_way)

    def _go_on(self) -> None:
        if self._items and self._drains is None and len(self._hanging) < self._ways.most:
            self._drains = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        # The next batch begins in the very step in which the one before ends: any detour through the event loop lets
        # all callers gather in one batch after the other, with nothing for the loop to do meanwhile.
        me = asyncio.current_task()
        assert me is not None
        loop = asyncio.get_running_loop()
        try:
            while self._items and self._drains is me:
                batch = self._take()
                if self._ways.most == 1:
                    await self._answer(batch)
                    continue
                timer = loop.call_later(self._ways.patience, self._pass_by, me)
                try:
                    await self._answer(batch)
                finally:
                    timer.cancel()
        finally:
            self._hanging.discard(me)
            if self._drains is me:
                self._drains = None
        self._go_on()

    def _pass_by(self, task: asyncio.Task[None]) -> None:
        self._hanging.add(task)
        self._drains = None
        self._go_on()
        if not self._looking:
            self._expire()

    def _expire(self) -> None:
        """While every way is blocked: whose turn has not come in time."""
        self._looking = len(self._hanging) == self._ways.most
        if not self._looking:
            return
        before = time.monotonic() - self._ways.wait
        while self._items and self._items[0].since < before:
            answer = self._items.popleft().answer
            if not answer.done():
                answer.set_exception(NoTurn("Too many batches hang; this is in none of them."))
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._expire)

    def _take(self) -> list[_Waiting[Item, Answer]]:
        batch: list[_Waiting[Item, Answer]] = []
        while self._items and len(batch) < self._limit:
            waiting = self._items.popleft()
            if self._ways.most == 1 or not waiting.answer.done():
                batch.append(waiting)
        return batch

    async def _answer(self, batch: list[_Waiting[Item, Answer]]) -> None:
        if not batch:
            return
        try:
            answered = list(zip(batch, await self._work([waiting.item for waiting in batch]), strict=True))
        except Exception as error:
            # Too few answers or too many too: whose is whose cannot be known, and nobody may wait for ever.
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
        except BaseException:
            # The loop is closing. Nobody may wait for what will not come.
            for waiting in batch:
                waiting.answer.cancel()
            raise
        else:
            for waiting, value in answered:
                if not waiting.answer.done():
                    waiting.answer.set_result(value)
