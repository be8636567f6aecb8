"""Records put on Kafka as the relay puts them there, read back, and groups set back, for the tests of this room."""

import asyncio
import time
from collections.abc import Iterable

from confluent_kafka import ConsumerGroupTopicPartitions, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from messaging.message import Envelope
from messaging.policy import Subscription
from messaging.producer import producer_config

Pairs = list[tuple[str, bytes | None]]


def headers(envelope: Envelope) -> Pairs:
    """What a consumer needs of the relay's headers."""
    return [
        ("ce_id", str(envelope.id).encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_subject", envelope.subject.encode()),
        ("event_version", str(envelope.version).encode()),
    ]


def produce(bootstrap: str, topic: str, envelopes: Iterable[Envelope]) -> None:
    """On a topic of the test's choice, all confirmed."""
    put(bootstrap, topic, ((e.key.encode(), e.payload, headers(e)) for e in envelopes))


def again(bootstrap: str, records: Iterable[Message]) -> None:
    """The same records once more, byte for byte, on their topic."""
    by_topic: dict[str, list[tuple[bytes | None, bytes | None, Pairs]]] = {}
    for record in records:
        by_topic.setdefault(str(record.topic()), []).append(
            (record.key(), record.value(), list(record.headers() or []))  # type: ignore[arg-type]
        )
    for topic, those in by_topic.items():
        put(bootstrap, topic, those)


def put(bootstrap: str, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Pairs]]) -> None:
    """(key, value, headers), all confirmed."""
    producer = Producer(producer_config(bootstrap, "test-put"))
    for key, value, pairs in records:
        producer.produce(topic, value=value, key=key, headers=pairs)
        producer.poll(0)
    assert producer.flush(30) == 0


def lag(admin: AdminClient, sub: Subscription, partitions: int = 6) -> int:
    """Records that the group has yet to finish."""
    places = [TopicPartition(sub.topic, number) for number in range(partitions)]
    asked = [ConsumerGroupTopicPartitions(sub.group, places)]
    done = admin.list_consumer_group_offsets(asked)[sub.group].result(10).topic_partitions
    ends = {p.partition: f.result(10).offset for p, f in _offsets(admin, places, OffsetSpec.latest()).items()}
    return sum(ends[place.partition] - max(0, place.offset) for place in done)


async def caught_up(admin: AdminClient, *subs: Subscription, seconds: float = 120.0) -> None:
    """Wait until these groups have finished all there is."""
    deadline = time.monotonic() + seconds
    while any([await asyncio.to_thread(lag, admin, sub) for sub in subs]):
        assert time.monotonic() < deadline, [lag(admin, sub) for sub in subs]
        await asyncio.sleep(0.1)


def rewind(admin: AdminClient, sub: Subscription, partitions: int = 6) -> int:
    """Set a group, of which no member runs, back to the beginning; how many records it will read again."""
    places = [TopicPartition(sub.topic, number) for number in range(partitions)]
    starts = {p.partition: f.result(10).offset for p, f in _offsets(admin, places, OffsetSpec.earliest()).items()}
    back = [TopicPartition(sub.topic, number, offset) for number, offset in starts.items()]
    deadline = time.monotonic() + 60
    while True:
        answer = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(sub.group, back)])
        changed = answer[sub.group].result(10).topic_partitions
        if not any(place.error for place in changed):
            return lag(admin, sub, partitions)
        # The broker has not noticed yet that the last member is gone.
        assert time.monotonic() < deadline, changed
        time.sleep(0.5)


def _offsets(admin: AdminClient, places: list[TopicPartition], which: OffsetSpec):  # type: ignore[no-untyped-def]
    return admin.list_offsets(dict.fromkeys(places, which))
