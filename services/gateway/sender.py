"""Sending back: takes letters that were decided to go back to their consumers, and does not lose one.

A request only marks a letter `sending`; this loop, in each worker, claims what is marked, produces it to its
consumer's own retry topic and marks it `sent` on the delivery report. What a crash leaves is claimed anew when its
lease ends. That may put a record on the retry topic twice: the consumer's ledger knows (id, generation) and runs it
once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

import psycopg
import structlog

from messaging import telemetry
from messaging.database import Connection, Pool, is_outage
from messaging.deadletter import sent_back_headers
from messaging.errors import MessagingError, NotRetryable
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from services.gateway.records import Due
from services.gateway.store import worker as store

log = structlog.get_logger(__name__)

BATCH = 200
BATCH_BYTES = 8 * 2**20
LOOK_SECONDS = 0.25
LEASE_SECONDS = 5.0
"""How long a silent process keeps what it has claimed."""

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0
CENSUS_SECONDS = 15.0

T = TypeVar("T")


class Sender:
    """One process's part in sending back. `subscriptions` by (source topic, consumer)."""

    def __init__(
        self, producer: ConfirmedProducer, pool: Pool, subscriptions: Mapping[tuple[str, str], Subscription]
    ) -> None:
        self._producer = producer
        self._pool = pool
        self._subscriptions = subscriptions
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send from now on, what an earlier process left included."""
        self._task = asyncio.create_task(self._run(), name="sender")
        self._task.add_done_callback(_raise)

    async def stop(self, seconds: float) -> None:
        """Claim nothing more and wait up to `seconds` for what is under way; another process finishes the rest."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def healthy(self) -> bool:
        """Whether it runs."""
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        census_at = 0.0
        while not self._stopping.is_set():
            if due := await self._persist(_claim):
                await self._send(due)
                continue
            now = asyncio.get_running_loop().time()
            if now >= census_at:
                await self._count_unowned()
                census_at = now + CENSUS_SECONDS
            await self._wait(LOOK_SECONDS)

    async def _send(self, due: Sequence[Due]) -> None:
        """Until Kafka has answered for every one, however long it is away; meanwhile they stay ours."""
        sending = {asyncio.create_task(self._produce(letter)): letter for letter in due}
        pending = set(sending)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, timeout=LEASE_SECONDS / 3)
                await self._settle([(sending[task], task.exception()) for task in done])
                if pending:
                    await self._persist(partial(_renew, [sending[task].id for task in pending]))
        finally:
            for task in pending:
                task.cancel()

    async def _produce(self, letter: Due) -> None:
        subscription = self._subscriptions.get((letter.source, letter.consumer))
        if subscription is None:
            raise NotRetryable(f"{letter.source} has no consumer {letter.consumer} any more.", "no_such_consumer")
        headers = sent_back_headers(letter.headers(), origin=letter.origin, generation=letter.generation + 1)
        await self._producer.send(subscription.retry_topic, letter.key, letter.value, headers)

    async def _settle(self, outcomes: Sequence[tuple[Due, BaseException | None]]) -> None:
        sent: list[UUID] = []
        for letter, error in outcomes:
            if error is None:
                sent.append(letter.id)
            elif isinstance(error, NotRetryable):
                log.warning("letter.refused", letter=str(letter.id), error=str(error))
                await self._persist(partial(_reopen, letter.id, str(error)))
            elif isinstance(error, MessagingError):
                # Kafka could not take it just now: claimed again when the lease ends.
                log.warning("letter.waits", letter=str(letter.id), error=str(error))
            else:
                raise error
        if sent:
            await self._persist(partial(_mark, sent))
            telemetry.LETTERS_SENT_BACK.inc(len(sent))
            log.info("letters.sent_back", count=len(sent))

    async def _count_unowned(self) -> None:
        counts = await self._persist(store.unowned) or {}
        for source in {source for source, _ in self._subscriptions} | counts.keys():
            telemetry.LETTERS_UNOWNED.labels(source).set(counts.get(source, 0))

    async def _persist(self, work: Callable[[Connection], Awaitable[T]]) -> T | None:
        """Do it in a transaction of its own, waiting out an outage of the database. None when stopped meanwhile."""
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._pool.connection() as conn:
                    return await work(conn)
            except psycopg.Error as error:
                if not is_outage(error):
                    raise
                log.warning("sender.database_away", error=str(error))
            if self._stopping.is_set():
                return None
            await self._wait(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


async def _claim(conn: Connection) -> list[Due]:
    return await store.claim(conn, limit=BATCH, max_bytes=BATCH_BYTES, lease_seconds=LEASE_SECONDS)


async def _renew(ids: Sequence[UUID], conn: Connection) -> None:
    await store.renew(conn, ids, LEASE_SECONDS)


async def _mark(ids: Sequence[UUID], conn: Connection) -> None:
    await store.sent(conn, ids)


async def _reopen(letter_id: UUID, error: str, conn: Connection) -> None:
    await store.refused(conn, letter_id, error)


def _raise(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
