"""The fair consumer of one process: its parts, put together, opened and closed in order.

poller      records and rebalances, on its own thread     scheduler  what waits, what an end means for it
membership  our partitions, commits                       turns      carries out the runs
intake      records become entries                        fairness   pure: whose turn is it
reread      parked records, on its own thread             lanes      pure: what waits, what is in memory
runs        one job while it holds a slot                 offsets    pure: how far may be committed
outcomes    what becomes of a failure                     watch      ticks: commits, figures, stalls
"""

from dataclasses import dataclass

import structlog

from messaging import telemetry
from messaging.attempts import Attempts
from messaging.background import Background
from messaging.database import Pool
from messaging.errors import Outage
from messaging.intake import Intake
from messaging.job import Reader
from messaging.lanes import Lanes
from messaging.ledger import Ledger
from messaging.membership import Membership
from messaging.outcomes import Outcomes
from messaging.policy import Subscription
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer
from messaging.queues import Queue
from messaging.reread import Rereader
from messaging.runs import Run, Runs
from messaging.scheduler import Scheduler
from messaging.trim import Trim
from messaging.watch import Watch

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one consumer process. window: payloads per sender; the rest in bytes and seconds."""

    window: int = 200
    payload_bytes: int = 64 * 1024 * 1024
    drain_seconds: float = 10.0
    stall_seconds: float = 30.0


class FairConsumer:
    """One process's share of a consumer. `open` joins the group; `close` drains, commits and leaves.

    until_done  the topic is this consumer's alone and keeps records until they are done: delete them then
    """

    def __init__(
        self,
        subscription: Subscription,
        reader: Reader,
        *,
        bootstrap: str,
        producer: ConfirmedProducer,
        pool: Pool | None = None,
        presence: Presence | None = None,
        limits: Limits | None = None,
        until_done: bool = False,
    ) -> None:
        self.subscription = subscription
        self.limits = limits or Limits()
        self._reader = reader
        self._bootstrap = bootstrap
        self._producer = producer
        self._pool = pool
        self._presence = presence
        self._attempts: Attempts | None = None
        self._trim = Trim(bootstrap) if until_done else None
        self._open = False

    async def open(self) -> None:
        """Register as a worker, join the group, start. Raises Outage when the database is away."""
        sub, limits, ledger = self.subscription, self.limits, None
        if self._pool is not None and self._presence is not None:
            worker = await self._presence.open()
            ledger = Ledger(sub.name, worker)
            self._attempts = Attempts(self._pool, sub.name, worker)
        runs = Runs(self._reader, self._pool, ledger)
        self._outcomes = Outcomes(sub, runs, self._producer, self._pool, ledger)
        lanes = Lanes(window=limits.window, budget=limits.payload_bytes)
        self.scheduler = Scheduler(
            sub.name, sub.policy, lanes, runs, self._outcomes, self._note, lambda: intake.read_parked()
        )
        self._background = Background()
        self._rereader = Rereader(self._bootstrap, f"{sub.group}.reread")
        intake = Intake(self.scheduler, self._rereader, sub.backoff.cap, self._background.spawn)
        self._membership = Membership(
            self._bootstrap, sub, self.scheduler, intake, self._background, limits.drain_seconds
        )
        self._watch = Watch(
            sub.name,
            self._membership,
            self.scheduler,
            intake,
            self._outcomes,
            self._background,
            attempts=self._attempts,
            trim=self._trim,
            stall_seconds=limits.stall_seconds,
        )
        telemetry.SLOTS_TOTAL.labels(sub.name).set(sub.policy.total)
        self._membership.join()
        self._open = True
        self._background.spawn(self._watch.run())

    async def close(self) -> None:
        """Start nothing more, let running work end for `drain_seconds`, stop the rest, commit, leave the group."""
        self._membership.leaving = self.scheduler.stopped = self._outcomes.stopping = True
        if not await self.scheduler.drain(self._membership.partitions, self.limits.drain_seconds):
            log.warning("drain.cut_short", consumer=self.subscription.name, running=self.scheduler.running)
        await self.scheduler.cancel_all()
        await self._membership.leave(self.limits.drain_seconds + 5.0)
        await self._background.close()
        await self._rereader.close()
        await self._watch.close()
        if self._presence is not None:
            await self._presence.close()

    def healthy(self) -> bool:
        """Whether others take this worker for alive: its heartbeat came through lately."""
        return self._presence is None or self._presence.fresh()

    def queue(self, tenant: str) -> Queue:
        """What waits and runs here of one tenant. Raises Outage before it is open."""
        if not self._open:
            raise Outage(f"The consumer {self.subscription.name} has not started yet.", "consumer")
        return self.scheduler.queue(tenant)

    def _note(self, run: Run, ended_at: float) -> None:
        if self._attempts is not None:
            self._attempts.note(run, ended_at)
