"""The bare loops: the same clients with the same settings, and nothing of the layer around them."""

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from loadtest.bench.pace import Stop, check, wait_until
from messaging.poller import IDLE_SECONDS, consumer_config
from messaging.producer import producer_config
from messaging.publisher import BATCH_BYTES, headers
from messaging.telemetry import new_traceparent

SLICE_ROWS = 5_000

READ = 1_000
"""Most records the poll loop takes at once: as in the loop that the promise was made beside. Batches as small as the
layer's own are quicker by a fifth, for what they hold is still in the processor's cache when it is looked at.
"""

JOB = b"\0" * 150
"""As large as the value of a reading job."""

_READ = """
SELECT seq, topic, key, payload, id::text, source, type,
    to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), subject, version::text, traceparent
FROM outbox ORDER BY seq
"""


def producer(bootstrap: str, **settings: int) -> Producer:
    """A producer as the layer's own are: idempotent, acks=all."""
    return Producer(producer_config(bootstrap, "bench") | {name.replace("_", "."): n for name, n in settings.items()})


def relay_producer(bootstrap: str) -> Producer:
    """One as the relay's is: it waits for nobody."""
    return producer(bootstrap, linger_ms=0, batch_size=BATCH_BYTES)


def produce_all(client: Producer, topic: str, keys: Sequence[str], stop: Stop) -> None:
    """One job for each key, with the headers that every event of the layer carries, confirmed."""
    now, trace = datetime.now(UTC).isoformat(), new_traceparent()
    for place, key in enumerate(keys):
        job_id = str(uuid.uuid4())
        row = (place, topic, key, JOB, job_id, "/documents", "bench.job_requested", now, job_id, "1", trace)
        _produce(client, topic, key, JOB, headers(row))
        if place % SLICE_ROWS == 0:
            check(stop)
    client.flush()


def consume_rate(bootstrap: str, topic: str, jobs: int, stop: Stop) -> float:
    """Records a second of a poll loop that takes from each what a consumer needs: key, value, headers, offset."""
    with _member(bootstrap, topic) as consumer:
        first = consumer.poll(0)
        while first is None:
            check(stop)
            first = consumer.poll(IDLE_SECONDS)
        begun, seen = time.perf_counter(), 1
        while seen < jobs:
            check(stop)
            for record in _batch(consumer):
                record.key(), record.value(), record.headers(), record.partition(), record.offset()
                seen += 1
        return (seen - 1) / (time.perf_counter() - begun)


def read_and_produce_rate(conninfo: str, bootstrap: str, rows: int, stop: Stop) -> float:
    """Rows a second of a server-side cursor over the outbox, produced with the relay's bytes until confirmed."""
    client = relay_producer(bootstrap)
    with psycopg.connect(conninfo) as connection:
        begun, seen = time.perf_counter(), 0
        with connection.cursor(name="bare", binary=True) as cursor:
            cursor.itersize = SLICE_ROWS
            cursor.execute(_READ)
            while batch := cursor.fetchmany(SLICE_ROWS):
                check(stop)
                for row in batch:
                    _produce(client, row[1], row[2], row[3], headers(row))
                client.poll(0)
                seen += len(batch)
        client.flush()
        assert seen == rows
        return seen / (time.perf_counter() - begun)


class Arrivals:
    """A bare consumer on a thread: when each record came, by the number in its value. `begin` forgets all."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.at: dict[int, float] = {}
        self._bootstrap, self._topic = bootstrap, topic
        self._stopping = threading.Event()
        self._joined = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bare-consumer", daemon=True)

    def begin(self) -> dict[int, float]:
        """From here on arrivals are noted in the dictionary returned."""
        self.at = {}
        return self.at

    def open(self, stop: Stop) -> None:
        """Join, and return once records are read."""
        self._thread.start()
        wait_until(self._joined.is_set, "the bare consumer got no partitions", stop)

    def close(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with _member(self._bootstrap, self._topic) as consumer:
            while not self._stopping.is_set():
                records = _batch(consumer)
                now = time.monotonic()
                for record in records:
                    self.at[int(record.value() or b"")] = now
                if not self._joined.is_set() and consumer.assignment():
                    self._joined.set()


@contextmanager
def _member(bootstrap: str, topic: str) -> Iterator[Consumer]:
    name = f"{topic}.bare-{uuid.uuid4().hex[:8]}"
    consumer = Consumer(consumer_config(bootstrap, name, name))
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def _batch(consumer: Consumer) -> list[Message]:
    """As the layer's own poll thread does: one record is awaited, and the rest taken."""
    first = consumer.poll(IDLE_SECONDS)
    if first is None:
        return []
    records = [first, *consumer.consume(READ - 1, 0)]
    for record in records:
        error = record.error()
        if error is not None:
            raise KafkaException(error)
    return records


def _produce(client: Producer, topic: str, key: str, value: bytes, said: Any) -> None:
    while True:
        try:
            client.produce(topic, value, key, headers=said, on_delivery=_confirmed)
        except BufferError:
            client.poll(0.05)
        else:
            return


def _confirmed(error: KafkaError | None, _record: Message) -> None:
    if error is not None:
        raise KafkaException(error)
