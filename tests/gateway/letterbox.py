"""Dead letters under test: written as a consumer writes them, projected, decided on, sent back."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence

from confluent_kafka import Producer

from messaging.database import Pool
from messaging.deadletter import dead_headers
from messaging.message import new_id
from messaging.producer import ConfirmedProducer, producer_config
from schemas.topics import DeadLetterTopic
from services.gateway.letters import Headers
from services.gateway.projector import Projector
from services.gateway.sender import Sender
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.messaging.harness import subscription

Raw = tuple[bytes | None, bytes | None, Headers]


def letters_of(source: str) -> DeadLetterTopic:
    """The dead-letter topic of a `source`'s consumer."""
    return DeadLetterTopic(subscription(source).dead_letter_topic, source, "reader", "tests")


@contextlib.asynccontextmanager
async def sending(infra: Infra, pool: Pool, source: str, *, bootstrap: str = "") -> AsyncIterator[Sender]:
    """A sender for the consumer of `source`, drained at the end."""
    producer = ConfirmedProducer(bootstrap or infra.kafka_bootstrap, "test")
    producer.open()
    sender = Sender(producer, pool, {(source, "reader"): subscription(source)})
    sender.start()
    try:
        yield sender
    finally:
        await sender.stop(5.0)
        await producer.close()


@contextlib.asynccontextmanager
async def projecting(
    infra: Infra, pool: Pool, source: str, *, group: str = "", bootstrap: str = ""
) -> AsyncIterator[Projector]:
    """A projector of its dead letters; in a group of its own unless told."""
    projector = Projector(
        bootstrap or infra.kafka_bootstrap, group or f"test-{uuid.uuid4()}", [letters_of(source)], pool
    )
    projector.start()
    try:
        yield projector
    finally:
        await projector.stop()


def put(infra: Infra, topic: str, records: Sequence[Raw]) -> None:
    """Produce records as they are."""
    producer = Producer(producer_config(infra.kafka_bootstrap, "test") | {"message.max.bytes": 3_000_000})
    for key, value, headers in records:
        producer.produce(topic, key=key, value=value, headers=list(headers))
        producer.poll(0)
    assert producer.flush(20) == 0


def dead(
    tenant: str, *, message_id: str = "", generation: int = 0, sender: str = "ann", reason: str = "malformed"
) -> Raw:
    """A dead letter as a consumer of ours writes it."""
    original: Headers = [("ce_id", (message_id or str(new_id())).encode()), ("ce_type", b"job")]
    headers = dead_headers(
        original,
        origin="jobs/0/1",
        consumer="reader",
        reason=reason,
        error="No.",
        attempts=1,
        generation=generation,
    )
    return f"{tenant}:{sender}".encode(), b"v", headers


def stored(home: Home, source: str) -> int:
    """How many letters of that topic are in the table."""
    (row,) = home.rows("select count(*) from dead_letters where source = %s", source)
    assert isinstance(row[0], int)
    return row[0]
