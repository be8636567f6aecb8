"""The jobs of the notifications service: telling people of an event, and carrying one delivery to its receiver."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog

from messaging import erasure, outbox
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import MessagingError, NotRetryable
from messaging.job import Handler, Job
from messaging.message import Envelope, Key
from messaging.retry import describe
from schemas.events import (
    DocumentFailed,
    DocumentRead,
    DocumentReviewed,
    NotificationDeliveryRequested,
    RequestCreated,
)
from services.notifications import notices
from services.notifications.channels import RECEIVER_GONE, Channels
from services.notifications.records import Order
from services.notifications.store import inbox, outgoing
from services.notifications.store.outgoing import Queued
from services.notifications.turns import Turns

SOURCE = "notifications"

AT_ONCE = 2
"""Transactions that tell one tenant something, in this process. They commit one after the other in any case, and
while they wait for it they must not hold everybody's connections."""

log = structlog.get_logger(__name__)

Ring = Callable[[str], None]
"""Called with a tenant who was told something, once that is committed."""


class Tell:
    """Notifications, deliveries and their jobs, in the transaction that marks the event done.

    Telling an event again is harmless, also after the ledger forgot it: what was said once for an event and an
    audience is not said again, and only what is new is delivered.
    """

    def __init__(self, codec: Codec, ring: Ring) -> None:
        self._codec = codec
        self._ring = ring
        self._turns = Turns(AT_ONCE)

    async def run(self, job: Job) -> None:
        """Tell everybody whom it concerns; nobody, when it happened before its sender was erased. Raises NotRetryable
        for an event that says what we have no words for.
        """
        said = notices.notices(job.event)
        async with self._turns.turn(job.key.tenant), job.transaction() as conn:
            erased_at = (await erasure.when(conn, [job.key])).get(job.key)
            if erased_at is not None and erasure.before(erased_at, job.headers):
                log.info("event.erased", event_id=job.id)
                return
            told = await inbox.add(conn, job.id, said, job.key.sender)
            await outbox.add(conn, [self._requested(queued) for queued in await outgoing.queue(conn, told)])
        if told:
            self._ring(said[0].tenant)

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        """Nobody sees that an event waits."""

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        """The dead letter says it all."""

    def _requested(self, queued: Queued) -> Envelope:
        tenant, sender, delivery = queued.owner.tenant, queued.owner.sender, str(queued.id)
        event = NotificationDeliveryRequested(
            delivery_id=delivery, tenant=tenant, sender=sender, channel=queued.channel
        )
        return self._codec.envelope(event, source=SOURCE, subject=delivery, key=Key(tenant, sender))


class Deliver:
    """One delivery to its receiver, who gets it at least once, always under the same idempotency key: a process that
    dies between the receiver's answer and our note of it delivers again.
    """

    def __init__(self, pool: Pool, channels: Channels) -> None:
        self._pool = pool
        self._channels = channels

    async def run(self, job: Job) -> None:
        """Deliver it. Raises what the channel raises; one that nobody wants any more ends as failed."""
        async with self._pool.connection() as conn:
            order = await outgoing.begin(conn, job.key.tenant, _delivery_id(job))
        if order is not None and order.wanted:
            await self._channels.of(order.channel).deliver(order)
        async with job.transaction() as conn:
            if order is not None:
                await self._note(conn, order)

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        """The delivery shows that it waits, and why."""
        await outgoing.end(conn, job.key.tenant, _delivery_id(job), "queued", describe(error))

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        """The delivery shows that it failed; nothing more goes to a receiver that is gone for good."""
        try:
            delivery = _delivery_id(job)
        except NotRetryable:
            return
        # The subscription before its delivery, as whoever unsubscribes locks them: no deadlock.
        if isinstance(error, NotRetryable) and error.reason == RECEIVER_GONE:
            await outgoing.disable(conn, delivery)
        await outgoing.end(conn, job.key.tenant, delivery, "failed", describe(error))

    async def _note(self, conn: Connection, order: Order) -> None:
        if order.wanted:
            await outgoing.end(conn, order.tenant, order.id, "delivered")
        else:
            why = f"Its subscription was {order.unwanted} before."
            await outgoing.end(conn, order.tenant, order.id, "failed", why)


def _delivery_id(job: Job) -> UUID:
    try:
        return UUID(job.event.delivery_id)
    except ValueError:
        raise NotRetryable("The job does not name a delivery.", "no_delivery") from None


def event_handlers(topic: str, tell: Tell) -> Mapping[type[Any], Handler]:
    """HANDLERS of one topic, each done by `tell`."""
    return dict.fromkeys(HANDLERS[topic], tell)


HANDLERS: Mapping[str, tuple[type[Any], ...]] = {
    RequestCreated.TOPIC: (RequestCreated,),
    DocumentRead.TOPIC: (DocumentRead, DocumentReviewed, DocumentFailed),
    NotificationDeliveryRequested.TOPIC: (NotificationDeliveryRequested,),
}
"""What is handled of each topic."""
