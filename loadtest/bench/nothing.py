"""A fair consumer of jobs that do nothing, and the handler that knows when each began."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

from psycopg_pool import AsyncConnectionPool

from loadtest.bench.pace import PATIENCE_SECONDS
from messaging.consumer import FairConsumer
from messaging.database import Connection, Pool
from messaging.errors import MessagingError, Outage
from messaging.job import Handler, Job
from messaging.policy import Subscription
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer


class Nothing:
    """A handler and a reader that do as little as can be. `started` hears of every start."""

    async def read(self, headers: dict[str, bytes], value: bytes | None) -> tuple[Any, Handler] | None:
        return value, self

    async def run(self, job: Job) -> None:
        self.started(job)

    def started(self, job: Job) -> None:
        raise NotImplementedError

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        raise AssertionError("nothing fails here")

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        raise AssertionError("nothing fails here")


class Counting(Nothing):
    """Knows when the first and the last of so many jobs started; there are at least two."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._runs = 0
        self._first_at = 0.0
        self._last_at = 0.0
        self._first = asyncio.Event()
        self._last = asyncio.Event()

    def started(self, job: Job) -> None:
        self._runs += 1
        if self._runs == 1:
            self._first_at = time.perf_counter()
            self._first.set()
        if self._runs == self._jobs:
            self._last_at = time.perf_counter()
            self._last.set()

    async def rate(self) -> float:
        """Jobs a second from the first start to the last."""
        await _in_time(self._first, "the first job has not started")
        await _in_time(self._last, f"not all of {self._jobs} jobs have run")
        return (self._jobs - 1) / (self._last_at - self._first_at)


class Noting(Nothing):
    """When each job started, by the number in its value. `begin` forgets all."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}

    def begin(self) -> dict[int, float]:
        """From here on starts are noted in the dictionary returned."""
        self.at = {}
        return self.at

    def started(self, job: Job) -> None:
        self.at[int(job.event)] = time.monotonic()


@asynccontextmanager
async def consuming(
    sub: Subscription, handler: Nothing, bootstrap: str, conninfo: str | None
) -> AsyncIterator[FairConsumer]:
    """A consumer for the length of a block; with a conninfo it keeps a ledger there."""
    async with AsyncExitStack() as stack:
        producer = ConfirmedProducer(bootstrap, "bench")
        producer.open()
        stack.push_async_callback(producer.close)
        pool: Pool | None = None
        if conninfo is not None:
            pool = AsyncConnectionPool(conninfo, min_size=4, max_size=10, open=False)
            stack.push_async_callback(pool.close)
            await pool.open(wait=True)
        presence = Presence(conninfo, sub.consumer) if conninfo is not None else None
        consumer = FairConsumer(sub, handler, bootstrap=bootstrap, producer=producer, pool=pool, presence=presence)
        stack.push_async_callback(consumer.close)
        await consumer.open()
        yield consumer


async def _in_time(event: asyncio.Event, what: str) -> None:
    try:
        await asyncio.wait_for(event.wait(), PATIENCE_SECONDS)
    except TimeoutError:
        raise Outage(f"Not within {PATIENCE_SECONDS:.0f} s: {what}.", "bench") from None
