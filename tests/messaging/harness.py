"""A consumer under test: topics, a database and handlers of its own, on the real servers."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from messaging.consumer import FairConsumer, Limits
from messaging.database import Connection, Pool
from messaging.errors import MessagingError, Undecodable
from messaging.job import Handler, Job, Reader
from messaging.policy import Backoff, Policy, Subscription
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer, producer_config

Work = Callable[[Job], Awaitable[None]]


@dataclass
class Recording:
    """A handler that does what it is told and remembers what happened."""

    work: Work
    starts: list[tuple[str, int, float]] = field(default_factory=list)
    retries: list[tuple[str, str, datetime]] = field(default_factory=list)
    ends: list[tuple[str, str, int]] = field(default_factory=list)
    running: int = 0
    most: int = 0

    async def run(self, job: Job) -> None:
        self.starts.append((job.id, job.attempt, time.monotonic()))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.work(job)
        finally:
            self.running -= 1

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        self.retries.append((job.id, str(error), due_at))

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        self.ends.append((job.id, str(error), attempts))

    def ids(self) -> list[str]:
        return [start[0] for start in self.starts]


class JsonReader:
    """Events are JSON objects; anything else is a dead letter."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def read(self, headers: dict[str, bytes], value: bytes | None) -> tuple[Any, Handler] | None:
        try:
            event = json.loads(value or b"")
        except ValueError as error:
            raise Undecodable("The record is not JSON.") from error
        return None if event == "not ours" else (event, self.handler)


def subscription(topic: str, policy: Policy | None = None, backoff: Backoff | None = None) -> Subscription:
    return Subscription(
        "reader",
        topic,
        f"{topic}.reader.retry",
        f"{topic}.reader.dlq",
        policy or Policy(per_key=2, total=10, lend=True),
        backoff or Backoff(attempts=4, base=0.05, cap=0.2),
    )


@asynccontextmanager
async def consuming(
    bootstrap: str,
    sub: Subscription,
    handler: Handler,
    *,
    pool: Pool | None = None,
    conninfo: str | None = None,
    limits: Limits | None = None,
    reader: Reader | None = None,
) -> AsyncIterator[FairConsumer]:
    """Run a consumer for the block, drained and closed after it. Without a `reader` its events are JSON."""
    producer = ConfirmedProducer(bootstrap, "test")
    producer.open()
    presence = Presence(conninfo, sub.consumer) if conninfo is not None else None
    consumer = FairConsumer(
        sub,
        reader or JsonReader(handler),
        bootstrap=bootstrap,
        producer=producer,
        pool=pool,
        presence=presence,
        limits=limits,
    )
    await consumer.open()
    try:
        yield consumer
    finally:
        await consumer.close()
        await producer.close()


def send(bootstrap: str, topic: str, jobs: list[tuple[str, Any]], partition: int | None = None) -> list[str]:
    """Produce (key, event) pairs, each under a fresh id; bytes are sent as they are. Returns the ids."""
    producer = Producer(producer_config(bootstrap, "test-send"))
    ids = []
    for key, event in jobs:
        message_id = str(uuid.uuid4())
        ids.append(message_id)
        value = event if isinstance(event, bytes) else json.dumps(event).encode()
        place = {} if partition is None else {"partition": partition}
        producer.produce(topic, value=value, key=key, headers=[("ce_id", message_id.encode())], **place)
        producer.poll(0)
    assert producer.flush(30) == 0
    return ids


def read_all(bootstrap: str, topic: str, partitions: int = 1) -> list[Message]:
    """Every record of a topic now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"read-{uuid.uuid4()}"})
    records: list[Message] = []
    try:
        ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=10)[1] for n in range(partitions)}
        consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
        while len(records) < sum(ends.values()):
            records.extend(r for r in consumer.consume(500, 0.2) if r.error() is None)
    finally:
        consumer.close()
    return records


def committed(bootstrap: str, sub: Subscription, partitions: int = 1) -> int:
    """The sum of the group's committed offsets on the source topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": sub.group, "enable.auto.commit": False})
    try:
        places = consumer.committed([TopicPartition(sub.topic, n) for n in range(partitions)], timeout=10)
        return sum(max(0, place.offset) for place in places)
    finally:
        consumer.close()


async def until(condition: Callable[[], bool], seconds: float = 20.0, what: str = "") -> None:
    """Wait for something to become true; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)
