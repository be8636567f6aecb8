"""What is read back from the real servers: the database's rows and Kafka's records, of one tenant only."""

import time
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer
from psycopg import AsyncConnection

from loadtest import collect, store, trail
from loadtest.records import Run, Seen, Stored
from messaging.migrate import migrate
from services.documents.parts import MIGRATIONS
from tests.fixtures.stack import Database, Infra


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[store.Connection]:
    migrate(database.conninfo, [MIGRATIONS], "postgres")
    async with await AsyncConnection.connect(database.conninfo, autocommit=True) as connection:
        yield connection


async def add(conn: store.Connection, tenant: str, sender: str, status: str) -> str:
    identity = str(uuid4())
    await conn.execute(
        "insert into documents (id, tenant, sender, kind, status, content_type, size_bytes, url,"
        " fingerprint) values (%s, %s, %s, 'url', %s, 'text/html', 1, 'http://x', '')",
        (identity, tenant, sender, status),
    )
    return identity


async def test_progress_counts_ended_and_running_documents_of_the_tenant(conn: store.Connection) -> None:
    for status in ("queued", "reading", "retrying", "waiting_for_review", "approved", "failed"):
        await add(conn, "load-1", "ana", status)
    await add(conn, "load-1", "ben", "queued")
    await add(conn, "load-2", "ana", "approved")
    progress = await collect.progress(conn, "load-1")
    assert progress == collect.Progress(ended={"ana": 3}, reading={"ana": 1})
    assert await store.others_unread(conn, ["load-1"]) == 0
    assert await store.others_unread(conn, ["load-2"]) == 4


async def test_documents_are_read_as_they_are(conn: store.Connection) -> None:
    identity = await add(conn, "load-1", "ana", "failed")
    await conn.execute("update documents set attempts = 4, error = 'why' where id = %s", (identity,))
    await add(conn, "load-2", "ana", "failed")
    assert await store.documents(conn, "load-1") == [Stored(identity, "ana", "failed", 4, "why")]


async def test_runs_come_from_the_attempts_of_the_consumer(conn: store.Connection) -> None:
    for tenant, consumer, outcome in (
        ("load-1", "reader", "retry"),
        ("load-2", "reader", "done"),
        ("load-1", "x", "done"),
    ):
        await conn.execute(
            "insert into ledger_attempts (consumer, message_id, generation, attempt, tenant, sender, subject, worker,"
            " ready_at, started_at, finished_at, outcome, lent, error)"
            " values (%s, 'm', 0, 1, %s, 'ana', 'd1', 1, to_timestamp(100.000001), to_timestamp(101.5),"
            " to_timestamp(102.25), %s, true, 'no')",
            (consumer, tenant, outcome),
        )
    (run,) = await store.runs(conn, "load-1", "reader")
    assert run == Run("d1", "ana", 1, 100.000001, 101.5, 102.25, "retry", True, "no")
    assert run.seconds == 0.75


@pytest.fixture
def produce(infra: Infra) -> Callable[[str, str, str, str], None]:
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap})

    def send(topic: str, key: str, identity: str, subject: str) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            ("ce_id", identity),
            ("ce_type", "document.read"),
            ("ce_subject", subject),
        ]
        producer.produce(topic, b"value", key.encode(), headers=headers)
        assert producer.flush(10) == 0

    return send


def test_the_trail_holds_every_record_of_the_tenant_and_no_other(
    infra: Infra, topic: Callable[..., str], produce: Callable[[str, str, str, str], None]
) -> None:
    events, letters, silent = topic(partitions=3), topic(), topic()
    produce(events, "load-1:ana", "e-before", "d0")
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    for number in range(50):
        produce(events, f"load-1:{number % 5}", f"e{number}", f"d{number}")
        produce(events, f"load-10:{number % 5}", f"x{number}", "another tenant's")
    produce(events, "load-1:ana", "e1", "d1")
    produce(letters, "load-1:ana", "j7", "d7")
    found = trail.read(infra.kafka_bootstrap, [events, letters, silent], "load-1", since)
    assert sorted(seen.id for seen in found if seen.topic == events) == sorted([f"e{n}" for n in range(50)] + ["e1"])
    assert [seen for seen in found if seen.topic == letters] == [Seen(letters, "j7", "document.read", "d7")]


def test_records_that_are_not_ours_do_not_disturb(infra: Infra, topic: Callable[..., str]) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap})
    producer.produce(name, b"no key")
    producer.produce(name, None, b"load-1:ana")
    producer.produce(name, b"odd header", b"load-1:ana", headers=[("ce_id", b"\xff"), ("ce_type", None)])
    assert producer.flush(10) == 0
    found = trail.read(infra.kafka_bootstrap, [name], "load-1", 0)
    assert found == [Seen(name, "", "", ""), Seen(name, "", "", "")]


def test_a_topic_that_does_not_exist_is_an_error(infra: Infra) -> None:
    with pytest.raises(KafkaException):
        trail.read(infra.kafka_bootstrap, ["no.such.topic"], "load-1", 0)


async def test_the_load_test_only_ever_reads(conn: store.Connection) -> None:
    await conn.execute("set default_transaction_read_only = on")
    await store.counts(conn, "t")
    await store.documents(conn, "t")
    await store.runs(conn, "t", "reader")
    await store.others_unread(conn, ["t"])
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await conn.execute("delete from documents")
