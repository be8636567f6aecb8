"""Events that cannot be counted: their dead letters, written until Kafka has them."""

import asyncio

import structlog

from messaging import telemetry
from messaging.deadletter import FIRST_HOP, Hop, dead_headers
from messaging.errors import Outage
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from services.analytics.record import Record
from services.analytics.tries import Tries

log = structlog.get_logger(__name__)

PAUSE = 0.25


class Letters:
    """Sets events aside."""

    def __init__(self, tries: Tries, producer: ConfirmedProducer) -> None:
        self._tries = tries
        self._producer = producer

    async def set_aside(self, record: Record, sub: Subscription, reason: str, message: str, tries: int) -> None:
        """Returns once Kafka has the dead letter, however long it is away. Why is noted in the database before."""
        # Our own headers count only on a retry topic.
        hop = Hop(record.raw_headers) if record.place.topic == sub.retry_topic else FIRST_HOP
        headers = dead_headers(
            record.raw_headers,
            origin=hop.origin or "/".join(map(str, record.place)),
            consumer=sub.consumer,
            reason=reason,
            error=message,
            attempts=tries,
            generation=hop.generation,
        )
        await self._tries.note(record.place, reason, message)
        while True:
            try:
                await self._producer.send(sub.dead_letter_topic, record.key, record.value, headers)
                break
            except Outage as error:
                log.warning("analytics.letter_waits", error=str(error))
            await asyncio.sleep(PAUSE)
        telemetry.DEAD_LETTERS.labels(sub.name, reason).inc()
        log.info("event.dead", consumer=sub.name, place="/".join(map(str, record.place)), reason=reason, tries=tries)
