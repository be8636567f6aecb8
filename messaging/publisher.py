"""Outbox rows on their way to Kafka: headers, delivery reports, and what to do with a record Kafka refuses."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from messaging.cursor import Row
from messaging.destinations import Destinations
from messaging.message import ID, SOURCE, SPECVERSION, SUBJECT, TIME, TRACEPARENT, TYPE, VERSION
from messaging.producer import REFUSED, producer_config

BATCH_BYTES = 131_072
"""Largest set of records sent as one, unless a topic takes less. A record above it always travels alone."""

LINGER_MS = 5
"""Longest wait of a record for others to be sent with. `push` ends it: it only keeps a slice's first record from
leaving alone while the others are handed over, which makes the broker as much work as all of them together."""

_GONE = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_NO_SUCH_TOPIC = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
_CHECK_EVERY = 64

log = structlog.get_logger(__name__)

Header = tuple[str, str | bytes | None]


def headers(row: Row) -> list[Header]:
    """CloudEvents binary mode, the event's major version, and the trace it was written in, if any."""
    _seq, _topic, _key, _payload, event_id, source, event_type, occurred_at, subject, version, traceparent = row
    found: list[Header] = [
        (SPECVERSION, "1.0"),
        (ID, event_id),
        (SOURCE, source),
        (TYPE, event_type),
        (TIME, occurred_at),
        (SUBJECT, subject),
        (VERSION, version),
    ]
    if traceparent is not None:
        found.append((TRACEPARENT, traceparent))
    return found


@dataclass(slots=True)
class Batch:
    """Rows handed to Kafka together. Done once every one has its delivery report."""

    rows: Sequence[Row]
    outstanding: int = 0
    answered_at: float = field(default_factory=time.monotonic)
    """When Kafka last answered for one of them, by the monotonic clock; at first, when they were handed over."""
    refused: list[tuple[Row, KafkaError]] = field(default_factory=list)
    fault: KafkaError | None = None
    """Why the rows must be sent again: an error that is no record's own."""

    def report(self, row: Row, error: KafkaError | None, _message: Message | None) -> None:
        """Kafka's answer for one row."""
        self.outstanding -= 1
        self.answered_at = time.monotonic()
        if error is None:
            return
        if error.code() in REFUSED or error.code() in _GONE:
            self.refused.append((row, error))
        else:
            self.fault = error


class Publisher:
    """One idempotent producer, used by one thread. After an error it raised, `discard` it and build another."""

    def __init__(self, bootstrap: str, client_id: str, check: Callable[[], None]) -> None:
        """`check` is called often while rows are handed over; it raises when this process may not go on."""
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._check = check
        self._destinations = Destinations(bootstrap, check)
        self._failure: KafkaError | None = None
        self._logged: set[int] = set()
        self._batch_bytes = BATCH_BYTES
        self._producer = self._build()

    def send(self, rows: Sequence[Row]) -> Batch:
        """Hand rows over in order. Raises KafkaException when the producer is of no more use."""
        batch = Batch(rows)
        limits = {topic: self._destinations.limit(topic) for topic in {row[1] for row in rows}}
        self._fit(min((limit for limit in limits.values() if limit is not None), default=BATCH_BYTES))
        for place, row in enumerate(rows):
            if place % _CHECK_EVERY == 0:
                self._check()
            if limits[row[1]] is None:
                batch.refused.append((row, _NO_SUCH_TOPIC))
            else:
                self._produce(batch, row)
        return batch

    def poll(self, seconds: float) -> None:
        """Serve delivery reports, waiting up to `seconds` for the first. Raises KafkaException as `send` does."""
        self._producer.poll(seconds)
        self._check_failure()

    def push(self, seconds: float) -> None:
        """As `poll`, until every report is in or the time is over, and nothing lingers meanwhile."""
        # The library counts whole milliseconds; of none it would come back at once, again and again.
        self._producer.flush(max(seconds, 0.001))
        self._check_failure()

    def settle(self, batch: Batch) -> list[tuple[Row, str]]:
        """The rows of a done batch that Kafka will never take, with its reason.

        A set of records is refused as a whole. One that may have been refused for its company is tried alone.
        Raises KafkaException when rows must be sent again.
        """
        if batch.fault is not None:
            raise KafkaException(batch.fault)
        self._logged.clear()
        refused = []
        for row, error in sorted(batch.refused, key=lambda refusal: refusal[0][0]):
            self._destinations.forget(row[1])
            final: KafkaError | None = error
            if error.code() not in _GONE and len(row[3]) < self._batch_bytes:
                final = self._alone(row)
            if final is not None:
                refused.append((row, f"{final.name()}: {final.str()}"))
        return refused

    def discard(self) -> None:
        """Drop what was not sent. What is under way may still arrive: a repeat, never a loss."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _alone(self, row: Row) -> KafkaError | None:
        trial = Batch([row])
        self._produce(trial, row)
        while trial.outstanding:
            self._check()
            self.push(0.05)
        if trial.fault is not None:
            raise KafkaException(trial.fault)
        return trial.refused[0][1] if trial.refused else None

    def _produce(self, batch: Batch, row: Row) -> None:
        batch.outstanding += 1
        while True:
            try:
                self._producer.produce(
                    row[1], value=row[3], key=row[2], headers=headers(row), on_delivery=partial(batch.report, row)
                )
            except BufferError:
                self._check()
                self.poll(0.05)
            except KafkaException as error:
                batch.report(row, error.args[0], None)
                return
            else:
                return

    def _fit(self, limit: int) -> None:
        """Keep sets of records below the smallest limit met: a larger set would be refused with all that is in it."""
        if limit >= self._batch_bytes:
            return
        while len(self._producer):
            self._check()
            self.push(0.05)
        self._batch_bytes = limit
        self._producer = self._build()

    def _build(self) -> Producer:
        config = producer_config(self._bootstrap, self._client_id) | {
            "linger.ms": LINGER_MS,
            "batch.size": self._batch_bytes,
            "error_cb": self._on_error,
            # What it would write to stderr by itself comes through `_on_error`.
            "log_level": 2,
        }
        return Producer(config)

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise KafkaException(self._failure)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._failure = error
        if error.code() not in self._logged:
            self._logged.add(error.code())
            log.warning("relay.kafka_error", client=self._client_id, error=error.str(), fatal=error.fatal())
