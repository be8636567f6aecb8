"""Reads what a run left on Kafka: its events and its dead letters, of its own tenant only."""

import secrets
import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from loadtest.records import Seen
from messaging import message
from messaging.errors import Outage

_TIMEOUT_SECONDS = 10.0
_BATCH_SECONDS = 0.1


def read(bootstrap: str, topics: Sequence[str], tenant: str, since: float) -> list[Seen]:
    """Every record of the tenant on these topics from the moment `since` up to now. Blocks; call it from a thread.

    Reads by assignment, joins no group and commits nothing. Raises KafkaException or Outage when the broker does
    not answer.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"load-test-reader-{secrets.token_hex(4)}",
            "enable.auto.commit": False,
            "enable.partition.eof": False,
        }
    )
    try:
        return _read(consumer, topics, tenant, since)
    finally:
        consumer.close()


def _read(consumer: Consumer, topics: Sequence[str], tenant: str, since: float) -> list[Seen]:
    ends = {}
    starts = consumer.offsets_for_times(
        [partition for topic in topics for partition in _partitions(consumer, topic, int(since * 1000))],
        timeout=_TIMEOUT_SECONDS,
    )
    for start in starts:
        if start.error is not None:
            raise KafkaException(start.error)
        low, high = consumer.get_watermark_offsets(TopicPartition(start.topic, start.partition), _TIMEOUT_SECONDS)
        if 0 <= start.offset < high:
            start.offset = max(start.offset, low)
            ends[start.topic, start.partition] = high
    consumer.assign([start for start in starts if (start.topic, start.partition) in ends])
    found: list[Seen] = []
    silent_since = time.monotonic()
    while ends:
        # A longer timeout would be waited out in full by the last, incomplete batch.
        batch = consumer.consume(500, timeout=_BATCH_SECONDS)
        if batch:
            silent_since = time.monotonic()
        elif time.monotonic() - silent_since > _TIMEOUT_SECONDS:
            raise Outage(
                f"Kafka sent nothing for {_TIMEOUT_SECONDS:.0f} s although records are left to read.", "kafka"
            )
        for record in batch:
            if (error := record.error()) is not None:
                raise KafkaException(error)
            topic, partition, offset = record.topic() or "", record.partition() or 0, record.offset() or 0
            end = ends.get((topic, partition))
            if end is None or offset >= end:
                continue
            if offset == end - 1:
                del ends[topic, partition]
            if (seen := _seen(record, topic, tenant)) is not None:
                found.append(seen)
    return found


def _partitions(consumer: Consumer, topic: str, milliseconds: int) -> list[TopicPartition]:
    described = consumer.list_topics(topic, timeout=_TIMEOUT_SECONDS).topics[topic]
    if described.error is not None:
        raise KafkaException(described.error)
    return [TopicPartition(topic, partition, milliseconds) for partition in described.partitions]


def _seen(record: Message, topic: str, tenant: str) -> Seen | None:
    key = record.key()
    raw = key.encode() if isinstance(key, str) else key
    if raw is None or not raw.startswith(f"{tenant}:".encode()):
        return None
    raw_headers = record.headers() or []
    pairs = raw_headers.items() if isinstance(raw_headers, dict) else raw_headers
    headers = message.headers_to_dict(
        [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
    )
    return Seen(
        topic,
        message.header_text(headers, message.ID) or "",
        message.header_text(headers, message.TYPE) or "",
        message.header_text(headers, message.SUBJECT) or "",
    )
