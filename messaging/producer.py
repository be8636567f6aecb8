"""Produce from the event loop and know that Kafka has it: one future per record, resolved by its delivery report."""

import asyncio
import threading
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from messaging.errors import MessagingError, NotRetryable, Outage

Headers = Sequence[tuple[str, bytes | None]]

REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
"""What the broker says of a record that it will not take, however often it is sent."""


def producer_config(bootstrap: str, client_id: str) -> dict[str, str | int | float | bool]:
    """The settings every producer of the layer shares.

    No record may overtake a timed-out one, so none times out (`message.timeout.ms` 0). The partitioner is Java's:
    librdkafka's default puts keys elsewhere than Debezium and faust do.
    """
    return {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": 0,
        "compression.type": "lz4",
        "linger.ms": 1,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,
    }


class ConfirmedProducer:
    """A producer whose `send` returns once the record is stored, or raises. Open it on the loop that uses it."""

    def __init__(self, bootstrap: str, client_id: str, *, max_message_bytes: int = 1_200_000) -> None:
        config = producer_config(bootstrap, client_id) | {"message.max.bytes": max_message_bytes}
        self._producer = Producer(config)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve_reports, name=f"{client_id}-reports", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Start serving delivery reports to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> tuple[int, int]:
        """Store one record; returns its (partition, offset).

        Raises NotRetryable when the broker refuses this record for good, Outage when it cannot be reached or the
        local queue is full. While the broker is away `send` waits: cancel it to give up (the record may still
        arrive).
        """
        loop = self._loop
        if loop is None:
            raise RuntimeError("open() the producer first")
        delivered: asyncio.Future[tuple[int, int]] = loop.create_future()

        def report(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(_resolve, delivered, error, message.partition(), message.offset())

        try:
            self._producer.produce(topic, value=value, key=key, headers=list(headers), on_delivery=report)
        except BufferError as error:
            raise Outage("The producer's queue is full; Kafka does not take records fast enough.", "kafka") from error
        except KafkaException as error:
            raise _as_error(error.args[0], topic) from error
        return await delivered

    async def close(self, timeout: float = 5.0) -> None:
        """Wait up to `timeout` seconds for reports that are due, then stop."""
        await asyncio.to_thread(self._producer.flush, timeout)
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, timeout)

    def _serve_reports(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(0.1)


def _resolve(
    delivered: "asyncio.Future[tuple[int, int]]", error: KafkaError | None, partition: int | None, offset: int | None
) -> None:
    if delivered.done():
        return
    if error is None:
        delivered.set_result((partition if partition is not None else -1, offset if offset is not None else -1))
    else:
        delivered.set_exception(_as_error(error, "the topic"))


def _as_error(error: KafkaError, topic: str) -> MessagingError:
    if error.code() in REFUSED:
        return NotRetryable(f"Kafka refuses the record for {topic}: {error.str()}", "refused_by_kafka")
    return Outage(f"Kafka cannot store a record in {topic}: {error.str()}", "kafka")
