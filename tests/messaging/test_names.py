"""Two consumers of one name in one process and one database: with an alias each, neither is in the other's way."""

import dataclasses
import uuid
from collections.abc import Callable

from confluent_kafka import Producer

from messaging import telemetry
from messaging.database import Pool
from messaging.errors import Retryable
from messaging.job import Job
from messaging.policy import Backoff, Policy, Subscription
from messaging.producer import producer_config
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import Recording, consuming, until

ORDERED = Policy(per_key=1, total=7, ordered=True)


async def test_ledger_metrics_and_queues_are_kept_apart(
    infra: Infra, ledger_pool: Pool, database: Database, source: Callable[..., Subscription]
) -> None:
    """The same message id on both topics: one consumer is done with it, the other has two failures to its name."""
    plain = source(policy=ORDERED, backoff=Backoff(attempts=3, base=0.01, cap=0.02))
    one = dataclasses.replace(plain, alias="one.reader")
    two = dataclasses.replace(
        source(policy=dataclasses.replace(ORDERED, total=3), backoff=plain.backoff), alias="two.reader"
    )

    async def well(job: Job) -> None:
        async with job.transaction():
            pass

    async def ill(job: Job) -> None:
        if job.attempt < 3:
            raise Retryable("told to fail")
        await well(job)

    shared = str(uuid.uuid4())
    producer = Producer(producer_config(infra.kafka_bootstrap, "test"))
    for sub in (one, two):
        producer.produce(sub.topic, value=b"{}", key=b"acme:ann", headers=[("ce_id", shared.encode())])
    assert producer.flush(30) == 0

    def ledger() -> dict[str, tuple[str, int]]:
        with database.connect() as connection:
            rows = connection.execute("select consumer, state, failures from ledger where message_id = %s", [shared])
            return {str(name): (str(state), int(str(failures))) for name, state, failures in rows}

    first, second = Recording(well), Recording(ill)
    settings = {"pool": ledger_pool, "conninfo": database.conninfo}
    async with (
        consuming(infra.kafka_bootstrap, one, first, **settings) as a,  # type: ignore[arg-type]
        consuming(infra.kafka_bootstrap, two, second, **settings) as b,  # type: ignore[arg-type]
    ):
        await until(lambda: ledger() == {"one.reader": ("done", 0), "two.reader": ("done", 2)})
        assert (len(first.starts), len(second.starts)) == (1, 3)
        assert (a.queue("acme").consumer, b.queue("acme").consumer) == ("one.reader", "two.reader")
        slots = {name: telemetry.SLOTS_TOTAL.labels(name)._value.get() for name in ("one.reader", "two.reader")}
        assert slots == {"one.reader": 7, "two.reader": 3}
