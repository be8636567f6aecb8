"""Whether groups have committed all there is to read."""

import time
from collections.abc import Collection, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

COMMIT_SECONDS = 20.0
"""How long after the last job its offset may take to be committed."""


def uncommitted(kafka: str, groups: Mapping[str, Collection[str]], partitions: int) -> list[str]:
    """Partitions whose last record is not committed within `COMMIT_SECONDS`. Blocks. `groups`: the topics of each."""
    deadline = time.monotonic() + COMMIT_SECONDS
    while True:
        try:
            found = [line for group, topics in groups.items() for line in _behind(kafka, group, topics, partitions)]
        except KafkaException as error:
            # A broker that has just come back does not know yet who coordinates which group.
            found = [str(error)]
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.5)


def _behind(kafka: str, group: str, topics: Collection[str], partitions: int) -> list[str]:
    client = Consumer({"bootstrap.servers": kafka, "group.id": group, "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
        found = []
        for place in client.committed(places, timeout=10):
            low, high = client.get_watermark_offsets(place, timeout=10)
            if high > low and place.offset < high:
                found.append(f"{place.topic}/{place.partition}: {place.offset} of {high}")
        return found
    finally:
        client.close()
