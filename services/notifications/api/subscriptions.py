"""Subscriptions over HTTP: who is told outside of the house, and where."""

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from messaging.database import Pool
from services.notifications import subscribing
from services.notifications.api.inbox import PATH as NOTIFICATIONS
from services.notifications.api.inbox import Word
from services.notifications.records import Channel, Subscription
from services.notifications.settings import NotificationsSettings
from services.notifications.store import outgoing
from web.openapi import answers
from web.problems import BadInput, id_of, not_found
from web.tokens import Bearer, Identity

PATH = NOTIFICATIONS + "/subscriptions"


class Wanted(BaseModel):
    """Where to tell, and of what; unless `kinds` says otherwise, of a person's documents' completion, and of all that
    a team is told. For a team the caller has to be an admin."""

    model_config = ConfigDict(extra="forbid")

    channel: Channel
    address: Annotated[str, StringConstraints(min_length=1, max_length=2048)] = Field(
        description="An e-mail address, or the web address that is called."
    )
    team: Word | None = None
    kinds: Annotated[list[Word], Field(max_length=20)] | None = None


class SubscriptionView(BaseModel):
    """A subscription. `team`: whose it is; null when it is the caller's own. `disabled_at`: since when its receiver
    is gone for good; delete it."""

    id: UUID
    channel: Channel
    address: str
    team: str | None
    kinds: list[str]
    created_by: str
    created_at: AwareDatetime
    disabled_at: AwareDatetime | None


class NewSubscriptionView(SubscriptionView):
    """A fresh subscription. `secret` signs what a webhook is sent, and is shown here only; null for e-mail."""

    secret: str | None


class SubscriptionsView(BaseModel):
    """All subscriptions of one owner, oldest first."""

    items: list[SubscriptionView]


def router(pool: Pool, bearer: Bearer, settings: NotificationsSettings) -> APIRouter:
    """The routes of subscriptions."""
    routes = APIRouter(tags=["subscriptions"])
    caller = Annotated[Identity, Depends(bearer)]

    @routes.post(
        PATH,
        status_code=HTTPStatus.CREATED,
        responses=answers(403, 409),
        summary="Be told by e-mail or webhook; an admin may subscribe for a team",
    )
    async def subscribe(wanted: Wanted, who: caller) -> NewSubscriptionView:
        mail, bad = settings.smtp_host is not None, BadInput()
        with bad:
            owner = subscribing.owner(who, wanted.team)
        with bad:
            address = subscribing.address(wanted.channel, wanted.address, settings.webhook_allow, mail=mail)
        with bad:
            kinds = subscribing.kinds("person" if wanted.team is None else "team", wanted.kinds)
        bad.tell()
        secret = subscribing.secret(wanted.channel)
        async with pool.connection() as conn:
            if await outgoing.lock_owner(conn, owner) >= settings.subscription_limit:
                raise subscribing.too_many(settings.subscription_limit)
            made = await outgoing.subscribe(conn, owner, wanted.channel, address, secret, kinds, who.sub)
        if made is None:
            raise subscribing.subscribed_before()
        return NewSubscriptionView(**_view(made).model_dump(), secret=secret)

    @routes.get(PATH, responses=answers(403), summary="The caller's subscriptions; for an admin also a team's")
    async def listed(who: caller, team: Word | None = None) -> SubscriptionsView:
        owner = subscribing.owner(who, team)
        async with pool.connection() as conn:
            found = await outgoing.subscriptions(conn, owner)
        return SubscriptionsView(items=[_view(subscription) for subscription in found])

    @routes.delete(
        PATH + "/{subscription_id}",
        status_code=HTTPStatus.NO_CONTENT,
        summary="Be told there no more; what is on its way is not sent",
    )
    async def unsubscribe(subscription_id: str, who: caller) -> Response:
        teams = not who.roles.isdisjoint(subscribing.TEAMS)
        async with pool.connection() as conn:
            gone = await outgoing.unsubscribe(
                conn, who.tenant, who.sub, id_of("subscription", subscription_id), teams=teams
            )
        if not gone:
            raise not_found("subscription")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return routes


def _view(subscription: Subscription) -> SubscriptionView:
    return SubscriptionView(
        id=subscription.id,
        channel=subscription.channel,
        address=subscription.address,
        team=subscription.owner if subscription.owner_kind == "team" else None,
        kinds=subscription.kinds,
        created_by=subscription.created_by,
        created_at=subscription.created_at,
        disabled_at=subscription.disabled_at,
    )
