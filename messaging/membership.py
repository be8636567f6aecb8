"""One process in its consumer group: its poller, its partitions, what is committed, what a rebalance takes."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from time import monotonic

import structlog
from confluent_kafka import Message, TopicPartition

from messaging.background import Background
from messaging.entries import Partition
from messaging.intake import Intake
from messaging.policy import Subscription
from messaging.poller import Poller, Sink, consumer_config
from messaging.scheduler import Scheduler

log = structlog.get_logger(__name__)


class Membership(Sink):
    """Called by the poll thread, on the loop. `drain_seconds`: how long a rebalance waits for running jobs."""

    def __init__(
        self,
        bootstrap: str,
        subscription: Subscription,
        scheduler: Scheduler,
        intake: Intake,
        background: Background,
        drain_seconds: float,
    ) -> None:
        self._bootstrap = bootstrap
        self._subscription = subscription
        self._scheduler = scheduler
        self._intake = intake
        self._background = background
        self._drain_seconds = drain_seconds
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.last_arrival = monotonic()
        self.leaving = False
        """Nobody may join any more: a poller that ends is not replaced."""

    def join(self) -> None:
        """Join the group and start polling; not when leaving."""
        if self.leaving:
            return
        self.last_arrival = monotonic()
        self._poller = Poller(
            consumer_config(self._bootstrap, self._subscription.group, self._subscription.group),
            [self._subscription.topic, self._subscription.retry_topic],
            self,
            self._drain_seconds + 2.0,
        )
        self._poller.start()

    async def leave(self, timeout: float) -> None:
        """Revoke, commit and leave the group, within `timeout` seconds."""
        await self._poller.stop(timeout)

    async def rejoin(self) -> None:
        """Leave and join with a new poller."""
        await self.leave(5.0)
        self.join()

    @property
    def partitions(self) -> list[Partition]:
        """Those that are ours now."""
        return list(self._partitions.values())

    def commit(self) -> None:
        """Commit what is finished, in the background."""
        offsets = _committable(self._partitions.values())
        if offsets:
            self._poller.commit(offsets)

    def lag(self, report: Callable[[dict[tuple[str, int], int]], None]) -> None:
        """Report, on the event loop, the records behind the end of each assigned partition."""
        self._poller.lag(report)

    def records_arrived(self, records: list[Message]) -> None:
        """Queue a batch."""
        self._poller.batch_taken()
        self.last_arrival = monotonic()
        self._intake.arrived(records, self._partitions)

    def partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Start a new epoch for each."""
        for place in partitions:
            retry = place.topic == self._subscription.retry_topic
            self._partitions[place.topic, place.partition] = Partition(place.topic, place.partition, is_retry=retry)
        log.info("partitions.assigned", consumer=self._subscription.name, count=len(partitions))

    def partitions_revoked(self, partitions: list[TopicPartition], drained: "Future[list[TopicPartition]]") -> None:
        """Drop what waits, wait for what runs, answer with the offsets to commit."""
        log.info("partitions.revoked", consumer=self._subscription.name, count=len(partitions))
        revoked = self._take_away(partitions)

        async def finish() -> None:
            await self._scheduler.drain(revoked, self._drain_seconds)
            drained.set_result(_committable(revoked))

        self._background.spawn(finish())

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
        if not self.leaving:
            log.error("poller.replaced", consumer=self._subscription.name, error=str(error))
            self._take_away([TopicPartition(topic, number) for topic, number in self._partitions])
            self._loop.call_later(1.0, self.join)

    def _take_away(self, places: Iterable[TopicPartition]) -> list[Partition]:
        taken = []
        for place in places:
            partition = self._partitions.pop((place.topic, place.partition), None)
            if partition is not None:
                partition.active = False
                taken.append(partition)
        self._scheduler.forget_inactive()
        return taken


def _committable(partitions: Iterable[Partition]) -> list[TopicPartition]:
    places = []
    for partition in partitions:
        offset = partition.offsets.committable()
        if offset is not None:
            places.append(TopicPartition(partition.topic, partition.number, offset))
    return places
