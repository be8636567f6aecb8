"""How far groups are: what Kafka says, and the age of what nobody has read."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from messaging import lag as lags
from messaging.admin import admin_client, delete_records
from messaging.errors import Outage
from messaging.lag import Lag, PartitionLag
from tests.fixtures.stack import Infra


@pytest.fixture
async def lag(infra: Infra) -> AsyncIterator[Lag]:
    lag = Lag(infra.kafka_bootstrap, "test")
    yield lag
    await lag.close()


def fill(infra: Infra, topic: str, counts: list[int], at: float) -> None:
    """So many records in each partition, a second apart from `at` (Unix seconds) on."""
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, value=b"x" * 2000, partition=partition, timestamp=int((at + number) * 1000))
    assert producer.flush(20) == 0


def commit(infra: Infra, group: str, topic: str, positions: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": infra.kafka_bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, partition, position) for partition, position in positions.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def figures(lags: list[PartitionLag]) -> list[tuple[int | None, int, int]]:
    return [(lag.position, lag.end, lag.lag) for lag in lags]


async def test_position_end_lag_and_age(infra: Infra, topic: Callable[..., str], lag: Lag) -> None:
    name, began = topic(4), time.time() - 1000
    fill(infra, name, [100, 100, 100, 0], began)
    commit(infra, "one", name, {0: 60, 1: 100})
    commit(infra, "two", name, {0: 10})
    places = [(name, partition) for partition in range(4)]
    found = await lag.of({"one": places, "two": places[:1], "nobody": places[:1]})
    assert figures(found["one"]) == [(60, 100, 40), (100, 100, 0), (None, 100, 100), (None, 0, 0)]
    assert figures(found["two"]) == [(10, 100, 90)]
    assert figures(found["nobody"]) == [(None, 100, 100)]
    ages = [partition.oldest_seconds for group in ("one", "two", "nobody") for partition in found[group]]
    expected = [1000 - 60, None, 1000, None, 1000 - 10, 1000]
    assert [age is None for age in ages] == [age is None for age in expected]
    assert all(abs(a - b) < 10 for a, b in zip(ages, expected, strict=True) if a is not None and b is not None)


async def test_what_was_deleted_does_not_count(infra: Infra, topic: Callable[..., str], lag: Lag) -> None:
    name, began = topic(1), time.time() - 1000
    fill(infra, name, [50], began)
    commit(infra, "one", name, {0: 10})
    await delete_records(admin_client(infra.kafka_bootstrap), {(name, 0): 30})
    (found,) = (await lag.of({"one": [(name, 0)]}))["one"]
    assert (found.position, found.end, found.lag) == (10, 50, 20)
    assert found.oldest_seconds is not None
    assert abs(found.oldest_seconds - (1000 - 30)) < 10


async def test_the_oldest_record_is_read_once(infra: Infra, topic: Callable[..., str], lag: Lag) -> None:
    name = topic(3)
    fill(infra, name, [500, 500, 500], time.time())
    groups = {"one": [(name, partition) for partition in range(3)]}
    answers = await asyncio.gather(*(lag.of(groups) for _ in range(3)))
    began = time.monotonic()
    again = await lag.of(groups)
    assert time.monotonic() - began < 0.5
    assert [figures(answer["one"]) for answer in answers] == [figures(again["one"])] * 3
    assert all(partition.oldest_seconds is not None for partition in again["one"])


async def test_an_outage_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "ANSWER_SECONDS", 1.0)
    lag = Lag("127.0.0.1:1", "test")
    with pytest.raises(Outage, match=r"^Kafka did not answer when asked how far its groups are\.$"):
        await lag.of({"one": [("jobs", 0)]})
    await lag.close()


async def test_a_client_that_failed_ends_in_a_thread_and_never_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[threading.Thread] = []

    class Client(AdminClient):
        def __del__(self) -> None:
            ended.append(threading.current_thread())

    monkeypatch.setattr(lags, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(lags, "AdminClient", Client)
    lag = Lag("127.0.0.1:1", "test")
    with pytest.raises(Outage):
        await lag.of({"one": [("jobs", 0)]})
    assert len(ended) == 1
    assert ended[0] is not threading.current_thread()
    await lag.close()


FIRST_ASKED_IN_AN_OUTAGE = """
import asyncio, sys
from messaging import lag
from messaging.errors import Outage
from tests.fixtures.outbox import Proxy

lag.ANSWER_SECONDS = 1.0

async def main():
    way = Proxy(sys.argv[1])
    way.cut()
    asked = lag.Lag(way.address, "test")
    outages = 0
    while True:
        try:
            await asked.of({"a": [(sys.argv[2], 0)], "b": [(sys.argv[2], 0)]})
            break
        except Outage:
            outages += 1
            if outages == 2:
                way.heal()
    await asyncio.sleep(2)
    await asked.close()

asyncio.run(main())
"""


def test_a_process_that_asked_in_an_outage_outlives_its_end(infra: Infra, topic: Callable[..., str]) -> None:
    """In a process of its own, which the client would abort."""
    command = [sys.executable, "-c", FIRST_ASKED_IN_AN_OUTAGE, infra.kafka_bootstrap, topic(1)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
