"""Retries that wait take no more memory than the byte budget allows, and all run."""

from collections.abc import Callable

from confluent_kafka import Producer

from messaging.consumer import Limits
from messaging.deadletter import DUE
from messaging.job import Job
from messaging.policy import Backoff, Subscription
from tests.fixtures.stack import Infra
from tests.messaging.harness import Recording, consuming, until


async def nothing(_job: Job) -> None:
    """A no-op job."""


async def test_a_flood_of_retries_is_kept_as_places_and_read_again_when_due(
    infra: Infra, source: Callable[..., Subscription]
) -> None:
    sub = source(backoff=Backoff(attempts=2, base=8.0, cap=8.0))
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap})
    for number in range(200):
        headers = [("ce_id", f"job-{number}".encode()), (DUE, b"9999999999999")]
        producer.produce(sub.retry_topic, b'"' + b"x" * 10_000 + b'"', f"acme:s{number % 5}", headers=headers)
    assert producer.flush(30) == 0
    handler = Recording(nothing)
    limits = Limits(payload_bytes=300_000)
    async with consuming(infra.kafka_bootstrap, sub, handler, limits=limits) as consumer:
        scheduler = consumer.scheduler
        await until(lambda: len(scheduler.delayed) == 200, 30, "all wait")
        assert 0 < scheduler.delayed.payload_bytes <= 300_000
        assert handler.starts == []
        await until(lambda: len(handler.starts) == 200, 60, "all run")
        assert (scheduler.delayed.payload_bytes, scheduler.lanes.payload_bytes) == (0, 0)
    assert sorted(handler.ids()) == sorted(f"job-{number}" for number in range(200))
