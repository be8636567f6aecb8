"""Delivers again, on demand, what a consumer has had: copies of its records on its own retry topic.

Its position stays where it is: setting it back is refused by Kafka while a member runs, and would bring nothing,
since the ledger knows that those records are done. A copy is a new generation of the same message, as one that is
sent back from the dead letters is, so the ledger lets it run, once, at this consumer only. Key, value, headers and id
are the original's, so an effect that is tied to the event's id is not made twice.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from messaging.admin import admin_client, kafka_errors
from messaging.deadletter import original_headers, sent_back_headers
from messaging.errors import NotRetryable, Outage
from messaging.garbled import Garbled, checked
from messaging.message import Key
from messaging.policy import Subscription
from messaging.producer import producer_config

ROUND = 100
"""Generations of one redelivery and the next are so far apart: a copy may die and be sent back so often between."""

BATCH = 1000
SILENT_SECONDS = 10.0
_ANSWER_SECONDS = 10.0
_IDLE = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
_FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What of one partition is delivered again: offsets from `first` up to, not including, `end`."""

    partition: int
    first: int
    end: int


def next_generation(highest: int, now: datetime) -> int:
    """One that no message of the consumer has had. `highest` is the ledger's; it forgets settled messages, so a
    generation is also never below the day's own.
    """
    day = (now - _FIRST_DAY).days
    return max(highest // ROUND + 1, day) * ROUND


class Redelivery:
    """One consumer's. A context manager: it closes its clients. Methods block, and raise Outage or Misconfigured."""

    def __init__(self, bootstrap: str, subscription: Subscription, partitions: int) -> None:
        self._subscription = subscription
        self._partitions = range(partitions)
        self._admin = admin_client(bootstrap)
        self._producer = Producer(
            producer_config(bootstrap, "redelivery")
            | {"message.max.bytes": 1_200_000, "message.timeout.ms": 60_000, "log_level": 2}
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                # Required by the client, used for nothing: this consumer only assigns.
                "group.id": f"{subscription.group}.redelivery",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 2,
            }
        )
        self._failed: KafkaError | None = None

    def __enter__(self) -> "Redelivery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()
        self._producer.flush(0 if kind else _ANSWER_SECONDS)

    def running(self) -> bool:
        """Whether a process runs the consumer now."""
        group = self._subscription.group
        with kafka_errors("list the groups"):
            listed = self._admin.list_consumer_groups(request_timeout=_ANSWER_SECONDS).result(_ANSWER_SECONDS)
        if listed.errors:
            raise Outage(f"Kafka does not say of all groups whether they run: {listed.errors[0]}", "kafka")
        states = [listing.state for listing in listed.valid or () if listing.group_id == group]
        return any(state not in _IDLE for state in states)

    def stretches(self, since: float | None) -> list[Stretch]:
        """What the consumer has had since then (Unix seconds, by the records' time stamps; None: from the earliest
        that is kept), without what is still before it: that comes by itself.
        """
        topic, group = self._subscription.topic, self._subscription.group
        places = [TopicPartition(topic, number) for number in self._partitions]
        with kafka_errors(f"say where {group} is"):
            asked = ConsumerGroupTopicPartitions(group, places)
            answer = self._admin.list_consumer_group_offsets([asked], request_timeout=_ANSWER_SECONDS)[group]
            had = {place.partition: place.offset for place in answer.result(_ANSWER_SECONDS).topic_partitions or ()}
            starts = self._offsets(OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            # Kafka knows no time before 1970, and has no record from then.
            if since is not None and since > 0:
                # -1 for a partition without a record that is as young.
                of_time = self._offsets(OffsetSpec.for_timestamp(int(since * 1000)))
                starts = {n: max(starts[n], first) if first >= 0 else had.get(n, 0) for n, first in of_time.items()}
        found = [Stretch(number, starts[number], had.get(number, 0)) for number in self._partitions]
        return [stretch for stretch in found if stretch.first < stretch.end]

    def run(
        self, stretches: Sequence[Stretch], key: Key | None, generation: int, progress: Callable[[int, int], None]
    ) -> int:
        """Copy them, only those of `key` if one is given; returns how many, once Kafka has confirmed all.

        `progress(read, copied)` is told offsets passed, out of the sum of all stretches, and copies made so far.
        """
        wanted = None if key is None else str(key).encode()
        passed = copied = 0
        for stretch in stretches:
            at = stretch.first
            for record in self._records(stretch):
                offset = record.offset()
                assert offset is not None
                passed += offset + 1 - at
                at = offset + 1
                if wanted is None or record.key() == wanted:
                    self._copy(record, f"{self._subscription.topic}/{stretch.partition}/{offset}", generation)
                    copied += 1
                progress(passed, copied)
            passed += stretch.end - at
        self._confirm()
        progress(passed, copied)
        return copied

    def _offsets(self, which: OffsetSpec) -> Mapping[int, int]:
        request = {TopicPartition(self._subscription.topic, number): which for number in self._partitions}
        answers = self._admin.list_offsets(request, request_timeout=_ANSWER_SECONDS)
        return {place.partition: answer.result(_ANSWER_SECONDS).offset for place, answer in answers.items()}

    def _records(self, stretch: Stretch) -> Iterator[Message | Garbled]:
        place = TopicPartition(self._subscription.topic, stretch.partition, stretch.first)
        with kafka_errors(f"read {place.topic}"):
            self._consumer.assign([place])
            heard_at = time.monotonic()
            while self._consumer.position([place])[0].offset < stretch.end:
                records = self._consumer.consume(BATCH, 0.1)
                if records:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > SILENT_SECONDS:
                    raise Outage(f"Kafka sends nothing of {place.topic}, partition {place.partition}.", "kafka")
                for record in records:
                    error = record.error()
                    if error is not None:
                        raise KafkaException(error)
                    if (record.offset() or 0) < stretch.end:
                        yield checked(record)

    def _copy(self, record: Message | Garbled, origin: str, generation: int) -> None:
        original = original_headers(record.headers())
        headers: list[tuple[str, str | bytes | None]] = []
        headers += sent_back_headers(original, origin=origin, generation=generation)
        topic = self._subscription.retry_topic
        while True:
            try:
                with kafka_errors(f"take a copy for {topic}"):
                    self._producer.produce(
                        topic, record.value(), record.key(), headers=headers, on_delivery=self._heard
                    )
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)
        self._check()

    def _heard(self, error: KafkaError | None, _record: Message) -> None:
        self._failed = self._failed or error

    def _confirm(self) -> None:
        while self._producer.flush(1.0):
            self._check()
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise NotRetryable(
                f"Kafka did not take a copy: {self._failed.str()}. What was copied before it runs; say it again once "
                "the cause is gone: what has run meanwhile then runs once more.",
                "refused_by_kafka",
            )
