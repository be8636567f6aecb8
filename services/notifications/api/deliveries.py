"""Deliveries over HTTP: what became of what left the house."""

import re
from dataclasses import replace
from typing import Annotated
from uuid import UUID

import httpx
from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel

from messaging.database import Pool
from services.notifications.api.inbox import PATH as NOTIFICATIONS
from services.notifications.records import Channel, Delivery, State
from services.notifications.store import outgoing
from web.tokens import Bearer, Identity

PATH = NOTIFICATIONS + "/deliveries"
ADDRESSES = frozenset({"admin"})
"""Who sees other persons' e-mail addresses."""


class DeliveryView(BaseModel):
    """One notification on its way to one receiver. `id` is the idempotency key that the receiver is told. `receiver`
    is an e-mail address, or a webhook's host: the rest of its address may be a secret. Of another person's e-mail
    address only an admin sees more than the domain. `sender`: whose it is, a person or null; `team` otherwise."""

    id: UUID
    notification: UUID
    subscription: UUID | None
    sender: str | None
    team: str | None
    channel: Channel
    receiver: str
    kind: str
    title: str
    state: State
    attempts: int
    error: str | None
    created_at: AwareDatetime
    updated_at: AwareDatetime
    delivered_at: AwareDatetime | None


class DeliveriesView(BaseModel):
    """Deliveries, newest first. `next` is the cursor of the page after, null at the end."""

    items: list[DeliveryView]
    next: UUID | None


def router(pool: Pool, bearer: Bearer) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["subscriptions"])

    @routes.get(PATH, summary="The caller's deliveries; for staff the tenant's")
    async def page(
        who: Annotated[Identity, Depends(bearer)],
        state: State | None = None,
        cursor: UUID | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> DeliveriesView:
        person = None if who.staff else who.sub
        async with pool.connection() as conn:
            found = await outgoing.deliveries(
                conn, who.tenant, person=person, state=state, below=cursor, limit=limit + 1
            )
        more = len(found) > limit
        return DeliveriesView(
            items=[_view(delivery, who) for delivery in found[:limit]], next=found[limit - 1].id if more else None
        )

    return routes


def masked(delivery: Delivery) -> Delivery:
    """Pure: without the e-mail address but its domain; a mail server's answer may repeat it."""
    shown = "…@" + delivery.address.rpartition("@")[2]
    error = delivery.error and re.sub(
        re.escape(delivery.address), lambda _: shown, delivery.error, flags=re.IGNORECASE
    )
    return replace(delivery, address=shown, error=error)


def _view(delivery: Delivery, who: Identity) -> DeliveryView:
    shown = DeliveryView.model_fields.keys() - {"sender", "team", "receiver"}
    person, email = delivery.owner_kind == "person", delivery.channel == "email"
    if email and person and delivery.owner != who.sub and who.roles.isdisjoint(ADDRESSES):
        delivery = masked(delivery)
    return DeliveryView(
        sender=delivery.owner if person else None,
        team=None if person else delivery.owner,
        receiver=delivery.address if email else httpx.URL(delivery.address).host,
        **{name: getattr(delivery, name) for name in shown},
    )
