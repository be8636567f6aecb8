"""The poll thread: it polls, commits when told, and hands rebalances to the scheduler. Nothing else runs on it.

Every call into the Kafka consumer is made here; the event loop sends commands and receives batches.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from queue import Empty, SimpleQueue

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

log = structlog.get_logger(__name__)

BATCH = 250
IDLE_SECONDS = 0.05
BATCHES_AHEAD = 2
"""Batches the loop may owe before polling waits: a busy loop then meets a bounded queue, and one so short that what
was read is still in the processor's cache when the loop comes to it.
"""

CLOSED = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT}


class Sink:
    """What the poll thread calls, on the event loop. The scheduler implements it."""

    def records_arrived(self, records: list[Message]) -> None:
        """Records in order per partition."""
        raise NotImplementedError

    def partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These partitions are ours from now on."""
        raise NotImplementedError

    def partitions_revoked(self, partitions: list[TopicPartition], drained: "Future[list[TopicPartition]]") -> None:
        """Stop their work, then set the offsets to commit. The poll thread waits for it, for a bounded time."""
        raise NotImplementedError

    def partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """They are another member's already: nothing of theirs may be committed."""
        raise NotImplementedError

    def offsets_committed(self, offsets: list[TopicPartition]) -> None:
        """The broker has stored these offsets."""
        raise NotImplementedError

    def polling_failed(self, error: BaseException) -> None:
        """The poll thread ended; a new one is needed."""
        raise NotImplementedError


def consumer_config(bootstrap: str, group: str, client_id: str) -> dict[str, str | int | bool]:
    """The settings of a group member.

    KIP-848 protocol, and the range assignor so that partition n of a topic and of its retry topic share a worker
    (the default splits them). The prefetch is small: what waits in librdkafka cannot be scheduled.
    """
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": client_id,
        "group.protocol": "consumer",
        "group.remote.assignor": "range",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "queued.min.messages": 2000,
        "queued.max.messages.kbytes": 16384,
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,
    }


def reader_config(bootstrap: str, client_id: str) -> dict[str, str | int | bool]:
    """The settings of a client that reads places it is told, from no group. Nobody else hears of it."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        # Required by the client, used for nothing: it only assigns.
        "group.id": f"{client_id}-unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


class Poller:
    """One Kafka consumer on a thread of its own."""

    def __init__(
        self, config: dict[str, str | int | bool], topics: Sequence[str], sink: Sink, revoke_seconds: float
    ) -> None:
        self._config = config
        self._topics = list(topics)
        self._sink = sink
        self._revoke_seconds = revoke_seconds
        self._loop = asyncio.get_running_loop()
        self._commands: SimpleQueue[Callable[[Consumer], None]] = SimpleQueue()
        self._stopping = threading.Event()
        self._taken = 0  # how often partitions were taken from us, as the poll thread knows it
        self._heard = 0  # and as the loop does
        self._room = threading.Semaphore(BATCHES_AHEAD)
        self._thread = threading.Thread(target=self._run, name=f"poller-{config['group.id']}", daemon=True)

    def start(self) -> None:
        """Join the group and start polling."""
        self._thread.start()

    async def stop(self, timeout: float) -> None:
        """Leave the group: revokes (through the sink), commits, closes. Waits up to `timeout` seconds."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, timeout)

    def commit(self, offsets: list[TopicPartition]) -> None:
        """Commit in the background; the sink hears of what the broker has stored.

        Nothing is committed when partitions were taken from us that the loop had not heard of yet: the next member
        may have committed more, and the broker asks only who is in the group, not whose the partition is.
        """
        heard = self._heard

        def work(consumer: Consumer) -> None:
            if heard == self._taken:
                consumer.commit(offsets=offsets, asynchronous=True)

        self._commands.put(work)

    def lag(self, report: Callable[[dict[tuple[str, int], int]], None]) -> None:
        """Report, on the event loop, the records behind the end of each assigned partition."""

        def work(consumer: Consumer) -> None:
            behind: dict[tuple[str, int], int] = {}
            for place in consumer.position(consumer.assignment()):
                _low, high = consumer.get_watermark_offsets(place, cached=True)
                if high >= 0 and place.offset >= 0:
                    behind[place.topic, place.partition] = max(0, high - place.offset)
            self._loop.call_soon_threadsafe(report, behind)

        self._commands.put(work)

    def batch_taken(self) -> None:
        """The loop has worked off one batch."""
        self._room.release()

    def _run(self) -> None:
        consumer = Consumer({**self._config, "error_cb": self._on_error, "on_commit": self._on_commit})
        try:
            consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
            while not self._stopping.is_set():
                self._run_commands(consumer)
                self._poll_once(consumer)
            self._run_commands(consumer)
        except Exception as error:
            log.exception("poller.failed", group=self._config["group.id"])
            self._loop.call_soon_threadsafe(self._sink.polling_failed, error)
        finally:
            consumer.close()

    def _poll_once(self, consumer: Consumer) -> None:
        # consume() waits until its batch is full or the time is over, so one record is awaited and the rest taken.
        first = consumer.poll(IDLE_SECONDS)
        if first is None:
            return
        records = [first, *consumer.consume(BATCH - 1, 0)]
        good = []
        for record in records:
            error = record.error()
            if error is None:
                good.append(record)
            else:
                self._on_error(error)
        if good:
            while not self._room.acquire(timeout=1.0):
                if self._stopping.is_set():
                    return
            self._loop.call_soon_threadsafe(self._sink.records_arrived, good)

    def _run_commands(self, consumer: Consumer) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command(consumer)

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._loop.call_soon_threadsafe(self._sink.partitions_assigned, partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._run_commands(consumer)
        drained: Future[list[TopicPartition]] = Future()
        self._taken += 1
        self._loop.call_soon_threadsafe(self._hear, self._sink.partitions_revoked, partitions, drained)
        try:
            offsets = drained.result(self._revoke_seconds)
            if offsets:
                consumer.commit(offsets=offsets, asynchronous=False)
        except FutureTimeout:
            log.error("revoke.not_drained", group=self._config["group.id"], seconds=self._revoke_seconds)
        except KafkaException as error:
            log.warning("revoke.commit_failed", group=self._config["group.id"], error=error.args[0].str())

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.warning("partitions.lost", group=self._config["group.id"], count=len(partitions))
        self._taken += 1
        self._loop.call_soon_threadsafe(self._hear, self._sink.partitions_lost, partitions)

    def _hear(self, tell: Callable[..., None], *told: object) -> None:
        self._heard += 1
        tell(*told)

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        if error is not None:
            log.warning("commit.failed", group=self._config["group.id"], error=error.str())
            return
        stored = [offset for offset in offsets if offset.error is None]
        self._loop.call_soon_threadsafe(self._sink.offsets_committed, stored)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            raise KafkaException(error)
        if error.code() in CLOSED:
            log.warning("kafka.away", group=self._config["group.id"], error=error.str())
        else:
            log.error("kafka.error", group=self._config["group.id"], error=error.str())
