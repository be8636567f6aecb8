"""What becomes of a run that failed, written down after its slot is free: nobody's slot waits for this.

The order keeps promises across a crash at any point: a retry is counted in the ledger before it is produced; a dead
letter is produced and confirmed before the ledger closes the job. Repeats are harmless: the ledger knows the id.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import structlog

from messaging import deadletter, retry, telemetry
from messaging.database import Connection, Pool, is_outage
from messaging.errors import Fenced, LostAttempts, MessagingError, NotRetryable, Outage
from messaging.judge import Judge
from messaging.ledger import Ledger
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from messaging.runs import BUSY_SECONDS, Again, Finished, Held, Run, Runs, Verdict, classify

log = structlog.get_logger(__name__)

WRITERS = 6
"""Outcomes written at once: a flood of bad records must leave connections to the starts of good jobs."""

TRIES = 5
"""Failures, outages aside, after which an outcome is written without its service's hook: the job is set aside."""

UNWRITABLE = "outcome_unwritable"

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0


class Outcomes:
    """Concludes the failed runs of one consumer on one worker."""

    def __init__(
        self,
        subscription: Subscription,
        runs: Runs,
        producer: ConfirmedProducer,
        pool: Pool | None,
        ledger: Ledger | None,
        seed: int | None = None,
    ) -> None:
        self._subscription = subscription
        self._runs = runs
        self._producer = producer
        self._pool = pool
        self._ledger = ledger
        self.judge = Judge(subscription, seed)
        self._writers = asyncio.Semaphore(WRITERS)
        self._owed: list[tuple[str, int, int]] = []  # starts that could not be given back yet
        self.stopping = False

    async def conclude(self, run: Run, decision: retry.Decision) -> Verdict:
        """Write down what the judge decided. Waits out an outage of the database or of Kafka, unless stopping."""
        error = run.error
        assert error is not None
        consumer = self._subscription.name
        if isinstance(error, Fenced):
            telemetry.FENCED.labels(consumer).inc()
            run.outcome = "fenced"
            return Again(BUSY_SECONDS)
        match decision:
            case retry.RetryIn(seconds=seconds):
                telemetry.RETRIES.labels(consumer, type(error).__name__).inc()
                run.outcome = "retry"
                return await self._persist(run, error, lambda: self._retry(run, error, seconds))
            case retry.SetAside(reason=reason, message=message):
                telemetry.DEAD_LETTERS.labels(consumer, reason).inc()
                run.outcome = "dead"
                return await self._persist(run, error, lambda: self._set_aside(run, error, reason, message))
            case retry.Later(seconds=seconds):
                await self.give_back(run)
                return Again(seconds)
            case retry.Wait() | retry.Pause():
                await self.give_back(run)
                return Held()

    async def give_back(self, run: Run) -> None:
        """Undo a start, uncharged: the run was stopped by us or by what everybody needs, not by its own fault."""
        run.outcome = "released"
        if self._ledger is None or run.token == 0:
            return
        self._owed.append((run.id, run.generation, run.token))
        await self.give_back_owed()

    async def give_back_owed(self) -> None:
        """Give back what an outage of the database left with us: while we live, another worker finds those busy."""
        if self._ledger is None or not self._owed:
            return
        owed, self._owed = self._owed, []
        try:
            async with self._connection() as conn:
                await self._ledger.release(conn, owed)
        except BaseException as error:
            self._owed = owed + self._owed
            if not is_outage(error):
                raise
            log.warning("release.failed", consumer=self._subscription.name, jobs=len(self._owed))

    async def _retry(self, run: Run, error: MessagingError, seconds: float) -> Verdict:
        due_at = time.time() + seconds
        if self._ledger is not None:
            async with self._connection() as conn, conn.transaction():
                if not await self._ledger.retry(conn, run.id, run.generation, run.token, seconds):
                    return Again(BUSY_SECONDS)
                if run.job is not None and run.handler is not None:
                    await run.handler.retrying(conn, run.job, error, datetime.fromtimestamp(due_at, UTC))
        if self._subscription.policy.ordered:
            return Again(seconds, due=True)
        headers = deadletter.retry_headers(
            run.entry.record.headers(),
            origin=run.origin,
            due_at=due_at,
            failures=run.failures + 1,
            generation=run.generation,
        )
        try:
            await self._produce(self._subscription.retry_topic, run, headers)
        except NotRetryable as refused:
            # So near the largest size that our headers do not fit: the dead letters take a little more.
            return await self._set_aside(run, refused, refused.reason, str(refused))
        return Finished()

    async def _set_aside(
        self, run: Run, error: MessagingError, reason: str, message: str, *, tell: bool = True
    ) -> Verdict:
        # A run that was frozen and fenced must not write letters, so the fence is asked before Kafka is.
        if self._ledger is not None:
            async with self._connection() as conn:
                if not await self._ledger.holds(conn, run.id, run.generation, run.token):
                    return Again(BUSY_SECONDS)
        lost = isinstance(error, LostAttempts)
        attempts = run.grant.strikes if lost and run.grant is not None else run.attempt
        await self._produce(
            self._subscription.dead_letter_topic,
            run,
            deadletter.dead_headers(
                run.entry.record.headers(),
                origin=run.origin,
                consumer=self._subscription.consumer,
                reason=reason,
                error=message,
                attempts=attempts,
                generation=run.generation,
            ),
        )
        if self._ledger is not None:
            readable = tell and (run.handler is not None or (lost and await self._runs.job_of_the_unread(run)))
            async with self._connection() as conn, conn.transaction():
                if not await self._ledger.dead(conn, run.id, run.generation, run.token, 0 if lost else 1):
                    return Again(BUSY_SECONDS)
                if readable and run.job is not None and run.handler is not None:
                    await run.handler.gave_up(conn, run.job, error, attempts)
        log.info("job.dead", consumer=self._subscription.name, job=run.id, reason=reason, attempts=attempts)
        return Finished()

    async def _produce(self, topic: str, run: Run, headers: list[tuple[str, bytes | None]]) -> None:
        record = run.entry.record
        await self._producer.send(topic, record.key(), record.value(), headers)

    async def _persist(self, run: Run, error: MessagingError, write: Callable[[], Awaitable[Verdict]]) -> Verdict:
        pause, failures = FIRST_PAUSE, 0
        while True:
            try:
                async with self._writers:
                    return await write()
            except Exception as fault:
                known = classify(fault)
                log.warning(
                    "outcome.waits", consumer=self._subscription.name, error=f"{type(fault).__name__}: {fault}"
                )
                if self.stopping and isinstance(known, Outage):
                    return Again(BUSY_SECONDS)
                failures += not isinstance(known, Outage)
                if failures == TRIES:
                    # One job whose service cannot note its end must not hold its partition's commit for ever.
                    message = retry.describe(fault)
                    log.error("outcome.unwritable", consumer=self._subscription.name, job=run.id, error=message)
                    run.outcome = "dead"

                    async def without_hook(message: str = message) -> Verdict:
                        return await self._set_aside(run, error, UNWRITABLE, message, tell=False)

                    write = without_hook
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _connection(self) -> AbstractAsyncContextManager[Connection]:
        assert self._pool is not None
        return self._pool.connection()
