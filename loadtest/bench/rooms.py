"""Topics and a database of the bench's own, dropped however the measurement ends."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo

from messaging.migrate import migrate
from messaging.policy import Backoff, Policy, Subscription

PARTITIONS = 4
SLOTS = 20
_SECONDS = 30.0
_POLICY = Policy(per_key=2, total=SLOTS, lend=True)


@contextmanager
def topics(bootstrap: str, count: int) -> Iterator[list[str]]:
    """Empty topics with four partitions each; their names."""
    names = [f"bench-{uuid.uuid4().hex[:12]}" for _ in range(count)]
    with _made(bootstrap, names):
        yield names


@contextmanager
def subscriptions(bootstrap: str, count: int) -> Iterator[list[Subscription]]:
    """As many consumers of 20 slots, each with its topic, and the two that follow from it."""
    made = [subscription(f"bench-{uuid.uuid4().hex[:12]}") for _ in range(count)]
    names = [name for one in made for name in (one.topic, one.retry_topic, one.dead_letter_topic)]
    with _made(bootstrap, names):
        yield made


def subscription(topic: str, consumer: str = "bench") -> Subscription:
    """A consumer of this topic. Under a name nobody used before it reads from the beginning."""
    return Subscription(consumer, topic, f"{topic}.retry", f"{topic}.dlq", _POLICY, Backoff())


@contextmanager
def database(admin: str, migrations: Sequence[Path] = ()) -> Iterator[str]:
    """A database with the messaging room's tables, and those of the folders given; its conninfo, the superuser's."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    conninfo = make_conninfo(admin, dbname=name, application_name="bench")
    try:
        migrate(conninfo, list(migrations), "postgres")
        yield conninfo
    finally:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def _made(bootstrap: str, names: list[str]) -> Iterator[None]:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    making = client.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    try:
        for made in making.values():
            made.result(_SECONDS)
        yield
    finally:
        for gone in client.delete_topics(names).values():
            gone.result(_SECONDS)
