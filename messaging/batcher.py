"""Single requests become batches without waiting for more: what arrives during one batch makes the next."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Collects items and gives them to `work` in batches of up to `limit`, one batch at a time.

    `work` answers each item, in order. When it raises, every item of that batch raises the same.
    """

    def __init__(self, work: Callable[[list[Item]], Awaitable[list[Answer]]], limit: int = 500) -> None:
        self._work = work
        self._limit = limit
        self._items: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Answer:
        """The answer to one item, once its batch is done."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._items.append((item, answer))
        if self._task is None:
            self._task = loop.create_task(self._drain())
        return await answer

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._items:
                batch, self._items = self._items[: self._limit], self._items[self._limit :]
                try:
                    answered = list(zip(batch, await self._work([item for item, _ in batch]), strict=True))
                except Exception as error:
                    # Too few answers or too many too: whose is whose cannot be known, and nobody may wait for ever.
                    for _, answer in batch:
                        if not answer.done():
                            answer.set_exception(error)
                else:
                    for (_, answer), value in answered:
                        if not answer.done():
                            answer.set_result(value)
        finally:
            self._task = None
