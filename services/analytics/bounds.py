"""What Kafka says of a partition's offsets, beside the stream that faust reads."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import faust
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition
from faust.types import TP

from messaging.admin import kafka_errors
from messaging.errors import Outage
from messaging.poller import reader_config
from services.analytics.committing import Committing

ASK_SECONDS = 10.0
_POLL_SECONDS = 0.5


class Between:
    """Asks with a plain client in no group, which sees what every consumer does. Faust's own client would be slow to
    answer: each question waits for the fetch that is under way, for a second and a half if nothing comes.
    """

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._config = reader_config(bootstrap, client_id) | {
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 1024,
            "fetch.wait.max.ms": 20,
            "log_level": 3,
        }
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()
        self._consumer: Consumer | None = None

    async def ask(self, topic: str, partition: int, since: int, until: int) -> int | None:
        """The first record at or behind `since` and before `until`; None when there is none, though one is at
        `until`. Raises Outage when Kafka does not say within ASK_SECONDS.
        """
        return await asyncio.to_thread(self._ask, TopicPartition(topic, partition, since), until)

    async def first(self, topic: str, partition: int) -> int:
        """The first offset Kafka still has of a partition. Raises Outage."""
        return await asyncio.to_thread(self._begins, TopicPartition(topic, partition))

    async def close(self) -> None:
        """Let go of Kafka; what is asked just now raises Outage."""
        self._closed.set()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._one_at_a_time:
            if self._consumer is not None:
                self._consumer.close()
            self._consumer = None

    def _ask(self, place: TopicPartition, until: int) -> int | None:
        with self._client("look for skipped events") as consumer:
            consumer.assign([place])
            try:
                return self._next(consumer, place, until)
            finally:
                consumer.unassign()

    def _begins(self, place: TopicPartition) -> int:
        with self._client("say where a partition begins") as consumer:
            bounds = consumer.get_watermark_offsets(place, timeout=ASK_SECONDS)
        if bounds is None:
            raise Outage(f"Kafka does not say where {place.topic}/{place.partition} begins.", "kafka")
        return int(bounds[0])

    @contextmanager
    def _client(self, doing: str) -> Iterator[Consumer]:
        with self._one_at_a_time, kafka_errors(doing):
            if self._consumer is None:
                self._consumer = Consumer(self._config)
            yield self._consumer

    def _next(self, consumer: Consumer, place: TopicPartition, until: int) -> int | None:
        deadline = time.monotonic() + ASK_SECONDS
        while time.monotonic() < deadline and not self._closed.is_set():
            record = consumer.poll(_POLL_SECONDS)
            if record is None:
                continue
            error, offset = record.error(), record.offset()
            if error is None and offset is not None and offset != OFFSET_INVALID:
                return offset if offset < until else None
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return None
        raise Outage(f"Kafka does not say what lies at {place.topic}/{place.partition}/{place.offset}.", "kafka")


class Bounds:
    """Asked through a running app's own consumer, and beside it."""

    def __init__(self, app: faust.App, between: Between) -> None:
        self._app = app
        self._between = between

    async def first(self, topic: str, partition: int) -> int:
        """As Between.first."""
        return await self._between.first(topic, partition)

    async def committed(self, topic: str, partition: int) -> int:
        """The group's next offset as it was when the partition was assigned; 0 without any."""
        return self._consumer._committed_offset.get(TP(topic, partition)) or 0

    async def between(self, topic: str, partition: int, since: int, until: int) -> int | None:
        """As Between.ask."""
        return await self._between.ask(topic, partition, since, until)

    def passed(self, topic: str, partition: int, since: int, until: int) -> None:
        """As Committing.passed."""
        self._consumer.passed(TP(topic, partition), since, until)

    @property
    def _consumer(self) -> Committing:
        consumer = self._app.consumer
        assert isinstance(consumer, Committing)
        return consumer
