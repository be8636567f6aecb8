"""Reading parked records again, on a real broker: reading on, stepping back, and what is not there any more."""

import asyncio
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from messaging import replay
from messaging.replay import Passed, Replay
from messaging.reread import Rereader
from tests.fixtures.stack import Infra
from tests.messaging.harness import read_all, send, until


@pytest_asyncio.fixture
async def rereader(infra: Infra) -> AsyncIterator[Rereader]:
    reader = Rereader(infra.kafka_bootstrap, "test-reread")
    yield reader
    await reader.close()


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The places that were begun anew, in order."""
    seen: list[tuple[str, int]] = []
    begin = Replay._begin

    def counted(self: Replay, place: tuple[str, int], wanted: deque[int]) -> None:
        seen.append(place)
        begin(self, place, wanted)

    monkeypatch.setattr(Replay, "_begin", counted)
    return seen


def numbered(count: int, first: int = 0) -> list[tuple[str, object]]:
    """Records that say their own offset, from `first` on."""
    return [("acme:a", {"n": number}) for number in range(first, first + count)]


async def fetch(rereader: Rereader, topic: str, offsets: list[int], partition: int = 0) -> list[int]:
    """Which of the offsets were found, each with the record that is there, if it says its own."""
    found = await asyncio.wait_for(rereader.fetch(topic, partition, offsets), 60)
    said = {offset: json.loads(record.value() or b"{}") for offset, record in found.items()}
    assert all(value.get("n", offset) == offset for offset, value in said.items())
    return sorted(found)


async def test_pass_after_pass_reads_on_from_one_beginning(
    infra: Infra, topic: Callable[..., str], rereader: Rereader, begins: list[tuple[str, int]]
) -> None:
    name = topic(1)
    send(infra.kafka_bootstrap, name, numbered(6000))
    for begin in range(0, 6000, 150):
        wanted = list(range(begin, begin + 150))
        assert await fetch(rereader, name, wanted) == wanted
    assert begins == [(name, 0)]


async def test_what_is_appended_later_is_read_on_to(
    infra: Infra, topic: Callable[..., str], rereader: Rereader, begins: list[tuple[str, int]]
) -> None:
    name = topic(1)
    for begin in range(0, 50, 10):
        send(infra.kafka_bootstrap, name, numbered(10, begin))
        wanted = list(range(begin, begin + 10))
        assert await fetch(rereader, name, wanted) == wanted
    assert begins == [(name, 0)]


async def test_a_small_step_back_is_served_from_what_was_read_over(
    infra: Infra, topic: Callable[..., str], rereader: Rereader, begins: list[tuple[str, int]]
) -> None:
    name = topic(1)
    send(infra.kafka_bootstrap, name, numbered(1000))
    even, odd = list(range(0, 1000, 2)), list(range(1, 1000, 2))
    assert await fetch(rereader, name, even) == even
    assert await fetch(rereader, name, odd) == odd
    assert begins == [(name, 0)]
    assert await fetch(rereader, name, [7, 8]) == [7, 8], "given away once; now the broker is asked again"
    assert begins == [(name, 0)] * 2


async def test_partitions_in_turn_keep_their_places(
    infra: Infra, topic: Callable[..., str], rereader: Rereader, begins: list[tuple[str, int]]
) -> None:
    name = topic(3)
    for partition in range(3):
        send(infra.kafka_bootstrap, name, numbered(1000), partition)
    for begin in range(0, 1000, 100):
        for partition in range(3):
            wanted = list(range(begin, begin + 100))
            assert await fetch(rereader, name, wanted, partition) == wanted
    assert sorted(begins) == [(name, 0), (name, 1), (name, 2)]


async def test_more_partitions_than_places_lose_nothing(
    infra: Infra, topic: Callable[..., str], rereader: Rereader
) -> None:
    name = topic(8)
    for partition in range(8):
        send(infra.kafka_bootstrap, name, numbered(20), partition)
    for wanted in (list(range(10)), list(range(10, 20)), [3, 15]):
        for partition in range(8):
            assert await fetch(rereader, name, wanted, partition) == wanted


async def test_deleted_records_are_missing_before_a_place_and_at_it(
    infra: Infra, topic: Callable[..., str], rereader: Rereader
) -> None:
    name, admin = topic(1), AdminClient({"bootstrap.servers": infra.kafka_bootstrap})
    send(infra.kafka_bootstrap, name, numbered(20_000))
    for deleted in admin.delete_records([TopicPartition(name, 0, 50)]).values():
        deleted.result(10)
    assert await fetch(rereader, name, list(range(100))) == list(range(50, 100))
    for deleted in admin.delete_records([TopicPartition(name, 0, 15_000)]).values():
        deleted.result(10)
    assert await fetch(rereader, name, [14_000, 14_999, 15_000, 19_999]) == [15_000, 19_999]
    assert await fetch(rereader, name, [60, 70]) == []


async def test_offsets_beyond_the_end_do_not_exist(
    infra: Infra, topic: Callable[..., str], rereader: Rereader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PATIENCE_SECONDS", 0.5)
    name = topic(1)
    send(infra.kafka_bootstrap, name, numbered(10))
    assert await fetch(rereader, name, [8, 9, 10, 500]) == [8, 9]
    assert await fetch(rereader, name, [9]) == [9]
    assert await fetch(rereader, name, [10, 11]) == [], "just ahead of the place"


async def test_a_topic_made_anew_is_read_as_it_is_now(
    infra: Infra, topic: Callable[..., str], rereader: Rereader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "PATIENCE_SECONDS", 0.5)
    name, admin = topic(1), AdminClient({"bootstrap.servers": infra.kafka_bootstrap})
    send(infra.kafka_bootstrap, name, numbered(100))
    assert await fetch(rereader, name, list(range(10))) == list(range(10))
    for gone in admin.delete_topics([name]).values():
        gone.result(10)
    await until(lambda: name not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(10)
    send(infra.kafka_bootstrap, name, [("acme:a", {"new": number}) for number in range(5)])
    assert await fetch(rereader, name, [100, 101]) == [], "ahead of the place in the old one"
    assert await fetch(rereader, name, [2, 3, 80]) == [2, 3]
    found = await rereader.fetch(name, 0, [2])
    assert found[2].value() == b'{"new": 2}'


async def test_numbers_without_a_record_are_missing_in_the_middle_and_at_the_end(
    infra: Infra, topic: Callable[..., str], rereader: Rereader
) -> None:
    name = topic(1)
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap, "transactional.id": f"test-{uuid.uuid4()}"})
    await asyncio.to_thread(producer.init_transactions, 30)
    for _ in range(3):
        producer.begin_transaction()
        for _ in range(2):
            producer.produce(name, b"{}", "acme:a")
        await asyncio.to_thread(producer.commit_transaction, 30)
    records = [record.offset() for record in await asyncio.to_thread(_first, infra, name, 6)]
    assert records == [0, 1, 3, 4, 6, 7], "a marker ends each transaction"
    assert await fetch(rereader, name, list(range(9))) == records
    assert await fetch(rereader, name, [2]) == []
    assert await fetch(rereader, name, [8]) == []


def _first(infra: Infra, name: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": infra.kafka_bootstrap, "group.id": f"read-{uuid.uuid4()}"})
    consumer.assign([TopicPartition(name, 0, 0)])
    records: list[Message] = []
    while len(records) < count:
        records.extend(record for record in consumer.consume(count, 0.2) if record.error() is None)
    consumer.close()
    return records


async def test_what_was_read_over_is_kept_within_bounds(infra: Infra, topic: Callable[..., str]) -> None:
    name = topic(1)
    send(infra.kafka_bootstrap, name, [("acme:a", b"x" * 100)] * 30)
    records = read_all(infra.kafka_bootstrap, name)
    few, small = Passed(records=10), Passed(size=1000)
    for passed in (few, small):
        for offset, record in enumerate(records):
            passed.add(offset, record)
        assert sorted(passed.take(range(30))) == list(range(20, 30))
        assert passed.take(range(30)) == {}
