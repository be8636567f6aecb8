"""How far the consumers are and what waits, over HTTP: the figures of Kafka and of the workers, nobody else's."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from messaging.producer import producer_config
from messaging.queues import Queue, SenderQueue
from schemas import topics
from services.gateway.workers import add_up
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Running
from tests.fixtures.stack import Infra
from tests.gateway.conftest import Start
from tests.gateway.upstreams import Heard, Upstream, answering, says

CONSUMERS, QUEUES = "/api/admin/consumers", "/api/admin/queues"
READER = topics.load().subscription("documents.jobs", "reader")
PARTITIONS = topics.load()[READER.topic].partitions


def queue(*senders: SenderQueue, in_use: int = 0, held_by: tuple[str, ...] = (), consumer: str = "reader") -> Queue:
    sums = {name: sum(getattr(s, name) for s in senders) for name in ("waiting", "running", "parked", "delayed")}
    return Queue(
        consumer=consumer, slots=10, in_use=in_use, held_by=list(held_by), senders=list(senders), left_out=0, **sums
    )


@pytest.fixture(scope="module")
def worker() -> Iterator[Upstream]:
    with answering(says("200 OK")) as worker:
        yield worker


@pytest.fixture(scope="module")
def silent() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def api(start: Start, worker: Upstream, silent: str) -> Iterator[Running]:
    with start("api", workers=f"{worker.url}, {silent}/") as running:
        yield running


def test_every_consumer_and_partition_with_the_figures_of_kafka(api: Running, infra: Infra) -> None:
    producer = Producer(producer_config(infra.kafka_bootstrap, "test"))
    for number in range(30):
        producer.produce(READER.retry_topic, value=b"x", key=f"figures:{number}".encode())
    assert producer.flush(10) == 0
    with api.client("eve", "acme", "viewer") as eve:
        answer = eve.get(CONSUMERS)
        again = eve.get(CONSUMERS).json()
    assert answer.status_code == 200, answer.text
    assert again["at"] == answer.json()["at"], "asked once in two seconds"
    listed = topics.load()
    assert [(c["topic"], c["consumer"]) for c in answer.json()["consumers"]] == [
        (topic, consumer) for topic in listed for consumer in listed[topic].consumers
    ]
    (reader,) = [c for c in answer.json()["consumers"] if c["group"] == READER.group]
    places = [(topic, n) for topic in (READER.topic, READER.retry_topic) for n in range(PARTITIONS)]
    assert [(p["topic"], p["partition"]) for p in reader["partitions"]] == places
    kafka = Consumer({"bootstrap.servers": infra.kafka_bootstrap, "group.id": READER.group})
    for shown in reader["partitions"]:
        place = TopicPartition(shown["topic"], shown["partition"])
        low, high = kafka.get_watermark_offsets(place, timeout=10)
        (committed,) = kafka.committed([place], timeout=10)
        first = max(low, committed.offset)
        assert (shown["position"] or 0, shown["end"]) == (max(0, committed.offset), high)
        assert shown["lag"] == high - first
        # A time stamp that could not be read in time is left out, so only this way round.
        assert shown["lag"] > 0 or shown["oldest_seconds"] is None
    kafka.close()
    assert reader["lag"] == sum(p["lag"] for p in reader["partitions"]) > 0
    ages = [p["oldest_seconds"] for p in reader["partitions"] if p["oldest_seconds"] is not None]
    assert reader["oldest_seconds"] == max(ages, default=None)


def test_the_workers_are_added_up_and_a_silent_one_is_named(api: Running, worker: Upstream, silent: str) -> None:
    content = (
        b'{"queues": [{"consumer": "reader", "slots": 10, "in_use": 3, "held_by": [], "waiting": 5, "running": 3,'
        b' "parked": 0, "delayed": 1, "left_out": 0, "senders":'
        b' [{"sender": "ann", "waiting": 5, "running": 3, "parked": 0, "delayed": 1}]}]}'
    )
    worker.answer = says("200 OK", "Content-Type: application/json", content=content)
    with api.client("eve", "acme", "viewer") as eve:
        found = eve.get(QUEUES).json()
        assert worker.heard[-1].line == "GET /api/queues HTTP/1.1"
        assert worker.heard[-1].values("authorization") == [eve.headers["authorization"]]
    assert found["queues"] == [
        {
            "consumer": "reader",
            "slots": 10,
            "in_use": 3,
            "held_by": [],
            "waiting": 5,
            "running": 3,
            "parked": 0,
            "delayed": 1,
            "senders": [{"sender": "ann", "waiting": 5, "running": 3, "parked": 0, "delayed": 1}],
            "left_out": 0,
        }
    ]
    assert found["workers"] == [
        {"address": worker.url, "silent": None},
        {"address": silent, "silent": "it cannot be reached: ConnectError"},
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says("503 Service Unavailable"), "it answered 503"),
        (says("200 OK", content=b"<html>"), "its answer cannot be read"),
        (says("200 OK", content=b'{"queues": [' + b" " * 5_000_000), "it cannot be reached: DecodingError"),
    ],
)
def test_a_worker_that_answers_nonsense_is_named(api: Running, worker: Upstream, answer: Any, why: str) -> None:
    worker.answer = answer
    with api.client("eve", "acme", "viewer") as eve:
        found = eve.get(QUEUES)
    assert (found.status_code, found.json()["queues"]) == (200, [])
    assert found.json()["workers"][0]["silent"] == why


def test_a_worker_that_hangs_is_named_in_time(api: Running, worker: Upstream) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Heard) -> None:
        await reader.read(1)

    worker.answer = hang
    with api.client("eve", "acme", "viewer") as eve:
        found = eve.get(QUEUES)
    assert found.json()["workers"][0]["silent"] == "no answer within 2 s"
    assert found.elapsed.total_seconds() < 4


@pytest.mark.parametrize("path", [CONSUMERS, QUEUES])
def test_both_are_for_staff(api: Running, path: str) -> None:
    with api.client("ann", "acme", "sender") as ann:
        assert ann.get(path).status_code == 403


SENDERS = st.builds(
    SenderQueue,
    sender=st.sampled_from(["ann", "bob", "eve"]),
    waiting=st.integers(0, 9),
    running=st.integers(0, 9),
    parked=st.integers(0, 9),
    delayed=st.integers(0, 9),
)


@given(st.lists(st.lists(SENDERS, max_size=3, unique_by=lambda sender: sender.sender), max_size=4))
def test_sums_lose_nobody(workers: list[list[SenderQueue]]) -> None:
    summed = add_up([queue(*senders, in_use=1, held_by=("provider",)) for senders in workers])
    assert len(summed) == (1 if workers else 0)
    for total in summed:
        assert (total.slots, total.in_use, total.held_by) == (10 * len(workers), len(workers), ["provider"])
        for name in ("waiting", "running", "parked", "delayed"):
            all_ = sum(getattr(sender, name) for senders in workers for sender in senders)
            assert getattr(total, name) == sum(getattr(sender, name) for sender in total.senders) == all_
        assert len({sender.sender for sender in total.senders}) == len(total.senders)
