"""The regular look at one consumer: commits what is finished, measures, finds what stands still, deletes what is
done.

Nothing here is urgent; all of it comes again at the next tick.
"""

import asyncio
from itertools import count
from time import monotonic

import structlog

from messaging import telemetry
from messaging.attempts import Attempts
from messaging.background import Background
from messaging.intake import Intake
from messaging.membership import Membership
from messaging.outcomes import Outcomes
from messaging.scheduler import Scheduler
from messaging.trim import Trim

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.25
WATCH_TICKS = 20
TRIM_TICKS = 240


class Watch:
    """Looks after the parts of one consumer. Without an arrival or a start for `stall_seconds`, it asks why."""

    def __init__(
        self,
        consumer: str,
        membership: Membership,
        scheduler: Scheduler,
        intake: Intake,
        outcomes: Outcomes,
        background: Background,
        *,
        attempts: Attempts | None,
        trim: Trim | None,
        stall_seconds: float,
    ) -> None:
        self._consumer = consumer
        self._membership = membership
        self._scheduler = scheduler
        self._intake = intake
        self._outcomes = outcomes
        self._background = background
        self._attempts = attempts
        self._trim = trim
        self._stall_seconds = stall_seconds
        self._silent_looks = 0

    async def run(self) -> None:
        """Tick until cancelled."""
        for tick in count(1):
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self._tick(tick)
            except Exception:
                # Commits and the watchdog live here: a fault in one tick must not end the others.
                log.exception("tick.failed", consumer=self._consumer)

    async def close(self) -> None:
        """Write down what was kept for the next tick."""
        self._measure()
        if self._attempts is not None:
            await self._attempts.flush()

    async def _tick(self, tick: int) -> None:
        self._membership.commit()
        self._intake.read_parked()
        self._measure()
        if tick % WATCH_TICKS == 0:
            self._membership.lag(self._lag_known)
            self._look_for_stall()
        await self._outcomes.give_back_owed()
        if self._attempts is not None:
            await self._attempts.flush()
        if self._trim is not None and tick % TRIM_TICKS == 0:
            self._background.spawn(self._trim.run(self._membership.partitions))

    def _measure(self) -> None:
        name, scheduler = self._consumer, self._scheduler
        scheduler.meters.flush()
        telemetry.SLOTS_RUNNING.labels(name).set(scheduler.running)
        telemetry.JOBS_WAITING.labels(name).set(scheduler.fairness.waiting)
        telemetry.JOBS_PARKED.labels(name).set(scheduler.lanes.parked)
        telemetry.JOBS_DELAYED.labels(name).set(len(scheduler.delayed))
        telemetry.PAYLOAD_BYTES.labels(name).set(scheduler.lanes.payload_bytes + scheduler.delayed.payload_bytes)
        telemetry.CONSUMER_PAUSED.labels(name).set(bool(scheduler.gate.holders()))

    def _lag_known(self, behind: dict[tuple[str, int], int]) -> None:
        for (topic, number), records in behind.items():
            telemetry.CONSUMER_LAG.labels(self._consumer, topic, str(number)).set(records)
        silent = monotonic() - self._membership.last_arrival > self._stall_seconds
        # Seen twice: a record that comes after a long pause is behind for a moment, too.
        self._silent_looks = self._silent_looks + 1 if silent and any(behind.values()) else 0
        if self._silent_looks >= 2 and not self._membership.leaving:
            self._silent_looks = 0
            self._stalled("nothing arrives although records are waiting in Kafka")
            self._background.spawn(self._membership.rejoin())

    def _look_for_stall(self) -> None:
        if self._scheduler.may_start and monotonic() - self._scheduler.last_start > self._stall_seconds:
            self._stalled("work waits, slots are free, nothing starts")
            self._scheduler.dispatch()

    def _stalled(self, what: str) -> None:
        telemetry.STALLS.labels(self._consumer).inc()
        log.error("consumer.stalled", consumer=self._consumer, what=what, **self._scheduler.describe())
