"""The servers that the whole test run shares."""

from collections.abc import Callable

import httpx
from confluent_kafka import Consumer, Producer

from tests.fixtures.stack import Database, Infra


def test_each_test_has_a_database_of_its_own(database: Database) -> None:
    with database.connect() as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (database.name,)
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_a_topic_carries_a_record(infra: Infra, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap})
    producer.produce(name, b"value", key=b"key", partition=2)
    assert producer.flush(10) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": infra.kafka_bootstrap,
            "group.id": name,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([name])
    record = consumer.poll(10)
    consumer.close()
    assert record is not None
    assert (record.value(), record.partition()) == (b"value", 2)


def test_the_registry_answers(infra: Infra) -> None:
    assert httpx.get(f"{infra.registry_url}/subjects").status_code == 200
