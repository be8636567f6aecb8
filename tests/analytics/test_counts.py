"""Counting on the real servers: what is counted, what restarts keep."""

import asyncio
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import TopicPartition

from messaging.lag import Lag
from services.gateway.api.consumers import Consumers, ConsumerView
from tests.analytics.conftest import Place, Start, read, received, request, until


def test_restarts_and_replays_change_nothing(place: Place, start: Start, tmp_path: Path) -> None:
    """With the disk, without it, and with all events read again on demand."""
    place.send([received(1), received(2, sender="bob"), request(1), received(1, tenant="other")])
    place.send([read(1)])
    with start() as counter:
        until(lambda: counter.total() == 4, counter)
        first = counter.events().json()
    assert first["types"] == [
        {"type": "document.read", "count": 1},
        {"type": "document.received", "count": 2},
        {"type": "request.created", "count": 1},
    ]
    assert [(each["sender"], each["count"]) for each in first["senders"]] == [("ann", 3), ("bob", 1)]
    assert first["reading"]["count"] == 1

    with start() as counter:
        until(lambda: counter.total() == 4, counter)
        assert {**counter.events().json(), "to": ""} == {**first, "to": ""}
        place.send([request(2)])
        until(lambda: counter.total() == 5, counter)

    shutil.rmtree(tmp_path / "tables")
    place.rewind()
    with start() as counter:
        until(lambda: counter.repeats() == 6, counter)
        assert counter.total() == 5
        place.send([request(3)])
        until(lambda: counter.total() == 6, counter)
        assert counter.events().json()["reading"] == first["reading"]
        until(lambda: place.committed() == 7, counter)
    shown = asyncio.run(positions(place))
    for each, topic, events in zip(shown, (place.documents, place.requests), (4, 3), strict=True):
        assert each.group == place.group
        assert {part.topic for part in each.partitions} == {topic, f"{topic}.analytics.retry"}
        assert sum(part.position or 0 for part in each.partitions) == events
        assert each.lag == 0


def test_what_was_committed_over_is_read_again(place: Place, start: Start) -> None:
    """The group stands two events ahead of what was counted."""
    place.send([request(1), request(2)])
    with start() as counter:
        until(lambda: counter.total() == 2 and place.committed() == 2, counter)
    (partition,) = {record.partition() for record in place.read_all(place.requests)}
    assert partition is not None
    place.send([request(3), request(4), request(5)])
    place.move([TopicPartition(place.requests, partition, 4)])
    with start() as counter:
        until(lambda: counter.total() == 5, counter)
        assert "analytics.moved_back" in counter.log.read_text()
        until(lambda: place.committed() == 5, counter)
        assert counter.repeats() == 0


async def positions(place: Place) -> list[ConsumerView]:
    """The consumers page. One group reads both topics, and each consumer is shown with its own partitions."""
    lag = Lag(place.infra.kafka_bootstrap, "test")
    try:
        return (await Consumers(lag, place.listed).view()).consumers
    finally:
        await lag.close()


def test_buckets_past_their_time_are_taken_out(place: Place, start: Start) -> None:
    """A minute that was counted is past its time in the next process: it goes, on Kafka too; hour and day stay."""
    at = datetime.fromtimestamp(time.time() - 180, UTC).isoformat()
    with start() as counter:
        place.send([request(1)], headers=[("ce_time", at.encode())])
        until(lambda: counter.minutes() == 1, counter)
    with start(minutes_kept_days=60 / 86_400) as counter:
        until(lambda: counter.minutes() == 0, counter)
        assert counter.total() == 1
    left = {record.key(): record.value() for record in place.read_all(f"{place.group}-counts-changelog")}
    assert sum(value is None for value in left.values()) == 1
