"""The fair consumer of one process: joins the group, keeps its partitions, commits, watches over itself.

poller    records and rebalances, on its own thread     scheduler  who runs now
reread    parked records, on its own thread             fairness   pure: whose turn is it
runs      one job while it holds a slot                 lanes      pure: what waits, what is in memory
outcomes  what becomes of a failure                     offsets    pure: how far may be committed
"""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any

import structlog
from confluent_kafka import Message, TopicPartition

from messaging import telemetry
from messaging.attempts import Attempts
from messaging.database import Pool
from messaging.deadletter import Hop
from messaging.errors import Outage
from messaging.garbled import checked
from messaging.job import Reader
from messaging.lanes import NOBODY, Entry, Lanes, Partition, RawRecord
from messaging.ledger import Ledger
from messaging.message import Key
from messaging.outcomes import Outcomes
from messaging.policy import Subscription
from messaging.poller import Poller, Sink, consumer_config
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer
from messaging.queues import Queue
from messaging.reread import Rereader
from messaging.runs import Run, Runs
from messaging.scheduler import Scheduler
from messaging.trim import Trim

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.25
WATCH_TICKS = 20
TRIM_TICKS = 240


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one consumer process. window: payloads per sender; the rest in bytes and seconds."""

    window: int = 200
    payload_bytes: int = 64 * 1024 * 1024
    drain_seconds: float = 10.0
    stall_seconds: float = 30.0


class FairConsumer(Sink):
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
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._last_arrival = 0.0
        self._silent_looks = 0
        self._closing = False
        self._open = False

    async def open(self) -> None:
        """Register as a worker, join the group, start. Raises Outage when the database is away."""
        self._loop = asyncio.get_running_loop()
        name, ledger = self.subscription.consumer, None
        if self._pool is not None and self._presence is not None:
            worker = await self._presence.open()
            ledger = Ledger(name, worker)
            self._attempts = Attempts(self._pool, name, worker)
        runs = Runs(self._reader, self._pool, ledger)
        self._outcomes = Outcomes(self.subscription, runs, self._producer, self._pool, ledger)
        lanes = Lanes(window=self.limits.window, budget=self.limits.payload_bytes)
        self.scheduler = Scheduler(
            name, self.subscription.policy, lanes, runs, self._outcomes, self._note, self._read_parked
        )
        self._rereader = Rereader(self._bootstrap, f"{self.subscription.group}.reread")
        telemetry.SLOTS_TOTAL.labels(name).set(self.subscription.policy.total)
        self._start_poller()
        self._open = True
        self._ticker = asyncio.create_task(self._tick_forever(), name=f"ticker-{name}")

    async def close(self) -> None:
        """Start nothing more, let running work end for `drain_seconds`, stop the rest, commit, leave the group."""
        self._closing = self.scheduler.stopped = self._outcomes.stopping = True
        if not await self.scheduler.drain(self._partitions.values(), self.limits.drain_seconds):
            log.warning("drain.cut_short", consumer=self.subscription.consumer, running=self.scheduler.running)
        await self.scheduler.cancel_all()
        await self._poller.stop(self.limits.drain_seconds + 5.0)
        for task in [self._ticker, *self._background]:
            task.cancel()
        await asyncio.gather(self._ticker, *self._background, return_exceptions=True)
        await self._rereader.close()
        if self._attempts is not None:
            await self._attempts.flush()
        if self._presence is not None:
            await self._presence.close()

    def healthy(self) -> bool:
        """Whether others take this worker for alive: its heartbeat came through lately."""
        return self._presence is None or self._presence.fresh()

    def queue(self, tenant: str) -> Queue:
        """What waits and runs here of one tenant. Raises Outage before it is open."""
        if not self._open:
            raise Outage(f"The consumer {self.subscription.consumer} has not started yet.", "consumer")
        return self.scheduler.queue(tenant)

    # Called by the poll thread, on the loop.

    def records_arrived(self, records: list[Message]) -> None:
        """Queue a batch; a record of a partition that is no longer ours is left to its new owner."""
        self._poller.batch_taken()
        self._last_arrival = self._loop.time()
        now = time.time()
        for record in map(checked, records):
            partition = self._partitions.get((str(record.topic()), int(record.partition() or 0)))
            offset = record.offset()
            if partition is None or offset is None or not partition.offsets.seen(offset):
                continue
            entry = _entry(partition, offset, record, now)
            self.scheduler.arrive(entry, self._due_in(record, now) if partition.is_retry else 0.0)
        self.scheduler.dispatch()
        self._read_parked()

    def partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Start a new epoch for each."""
        for place in partitions:
            retry = place.topic == self.subscription.retry_topic
            self._partitions[place.topic, place.partition] = Partition(place.topic, place.partition, is_retry=retry)
        log.info("partitions.assigned", consumer=self.subscription.consumer, count=len(partitions))

    def partitions_revoked(self, partitions: list[TopicPartition], drained: "Future[list[TopicPartition]]") -> None:
        """Drop what waits, wait for what runs, answer with the offsets to commit."""
        log.info("partitions.revoked", consumer=self.subscription.consumer, count=len(partitions))
        revoked = self._take_away(partitions)

        async def finish() -> None:
            await self.scheduler.drain(revoked, self.limits.drain_seconds)
            drained.set_result(_committable(revoked))

        self._spawn(finish())

    def partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """They are another member's: nothing of theirs is committed any more."""
        self._take_away(partitions)

    def offsets_committed(self, offsets: list[TopicPartition]) -> None:
        """The broker has them; what is finished beyond is committed at the next tick."""
        for place in offsets:
            partition = self._partitions.get((place.topic, place.partition))
            if partition is not None:
                partition.offsets.committed(place.offset)

    def polling_failed(self, error: BaseException) -> None:
        """The poll thread died: start another."""
        if not self._closing:
            log.error("poller.replaced", consumer=self.subscription.consumer, error=str(error))
            self._take_away([TopicPartition(topic, number) for topic, number in self._partitions])
            self._loop.call_later(1.0, self._start_poller)

    def _start_poller(self) -> None:
        if self._closing:
            return
        self._last_arrival = self._loop.time()
        self._poller = Poller(
            consumer_config(self._bootstrap, self.subscription.group, self.subscription.group),
            [self.subscription.topic, self.subscription.retry_topic],
            self,
            self.limits.drain_seconds + 2.0,
        )
        self._poller.start()

    def _take_away(self, places: Iterable[TopicPartition]) -> list[Partition]:
        taken = []
        for place in places:
            partition = self._partitions.pop((place.topic, place.partition), None)
            if partition is not None:
                partition.active = False
                taken.append(partition)
        self.scheduler.forget_inactive()
        return taken

    def _due_in(self, record: RawRecord, now: float) -> float:
        # A forged time must not park a record for ever: no retry waits longer than the backoff's cap.
        return min(Hop(record.headers()).due_at - now, self.subscription.backoff.cap)

    def _read_parked(self) -> None:
        for partition, offsets in self.scheduler.lanes.wanted().items():
            self._spawn(self._reread(partition, offsets))

    async def _reread(self, partition: Partition, wanted: dict[int, Key]) -> None:
        found = await self._rereader.fetch(partition.topic, partition.number, sorted(wanted))
        now = time.time()
        for offset, key in sorted(wanted.items()):
            record = found.get(offset)
            if record is not None:
                self.scheduler.loaded(_entry(partition, offset, checked(record), now))
                continue
            self.scheduler.lanes.gone(key, partition)
            partition.offsets.finished(offset)
            log.error("record.gone", topic=partition.topic, partition=partition.number, offset=offset)
        self.scheduler.dispatch()
        self._read_parked()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def _note(self, run: Run, ended_at: float) -> None:
        if self._attempts is not None:
            self._attempts.note(run, ended_at)

    async def _tick_forever(self) -> None:
        for tick in count(1):
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self._tick(tick)
            except Exception:
                # Commits and the watchdog live here: a fault in one tick must not end the others.
                log.exception("tick.failed", consumer=self.subscription.consumer)

    async def _tick(self, tick: int) -> None:
        offsets = _committable(self._partitions.values())
        if offsets:
            self._poller.commit(offsets)
        self._read_parked()
        self._measure()
        if tick % WATCH_TICKS == 0:
            self._poller.lag(self._lag_known)
            self._look_for_stall()
        await self._outcomes.give_back_owed()
        if self._attempts is not None:
            await self._attempts.flush()
        if self._trim is not None and tick % TRIM_TICKS == 0:
            self._spawn(self._trim.run(list(self._partitions.values())))

    def _measure(self) -> None:
        name, scheduler = self.subscription.consumer, self.scheduler
        telemetry.SLOTS_RUNNING.labels(name).set(scheduler.running)
        telemetry.JOBS_WAITING.labels(name).set(scheduler.fairness.waiting)
        telemetry.JOBS_PARKED.labels(name).set(scheduler.lanes.parked)
        telemetry.JOBS_DELAYED.labels(name).set(len(scheduler.delayed))
        telemetry.PAYLOAD_BYTES.labels(name).set(scheduler.lanes.payload_bytes)
        telemetry.CONSUMER_PAUSED.labels(name).set(bool(scheduler.gate.holders()))

    def _lag_known(self, behind: dict[tuple[str, int], int]) -> None:
        for (topic, number), records in behind.items():
            telemetry.CONSUMER_LAG.labels(self.subscription.consumer, topic, str(number)).set(records)
        silent = self._loop.time() - self._last_arrival > self.limits.stall_seconds
        # Seen twice: a record that comes after a long pause is behind for a moment, too.
        self._silent_looks = self._silent_looks + 1 if silent and any(behind.values()) else 0
        if self._silent_looks >= 2 and not self._closing:
            self._silent_looks = 0
            self._stalled("nothing arrives although records are waiting in Kafka")
            self._spawn(self._replace_poller())

    async def _replace_poller(self) -> None:
        await self._poller.stop(5.0)
        self._start_poller()

    def _look_for_stall(self) -> None:
        if self.scheduler.may_start and self._loop.time() - self.scheduler.last_start > self.limits.stall_seconds:
            self._stalled("work waits, slots are free, nothing starts")
            self.scheduler.dispatch()

    def _stalled(self, what: str) -> None:
        telemetry.STALLS.labels(self.subscription.consumer).inc()
        log.error("consumer.stalled", consumer=self.subscription.consumer, what=what, **self.scheduler.describe())


def _entry(partition: Partition, offset: int, record: RawRecord, now: float) -> Entry:
    try:
        key = Key.parse(record.key())
    except ValueError:
        key = NOBODY
    entry = Entry(key, partition, offset, record, len(record.value() or b""), now)
    entry.due = partition.is_retry
    return entry


def _committable(partitions: Iterable[Partition]) -> list[TopicPartition]:
    places = []
    for partition in partitions:
        offset = partition.offsets.committable()
        if offset is not None:
            places.append(TopicPartition(partition.topic, partition.number, offset))
    return places
