"""Notifications over HTTP: the list, and what was read of it."""

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict, StringConstraints

from messaging.database import Pool
from services.notifications.records import Entry, Sight
from services.notifications.store import inbox
from services.notifications.store.inbox import Wanted
from web.openapi import answers
from web.problems import id_of, not_found
from web.tokens import Bearer, Identity, staff_only

PATH = "/api/notifications"
MAX_SEQ = 2**63 - 1

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class NotificationView(BaseModel):
    """What somebody is told. `team`: the team that is told; null when it is the reader in person. `read_at` is about
    the reader alone: each member of a team reads for themselves."""

    id: UUID
    kind: str
    team: str | None
    title: str
    body: str
    href: str
    created_at: AwareDatetime
    read_at: AwareDatetime | None


class NotificationsView(BaseModel):
    """Notifications, newest first. `next` is the cursor of the page after, null at the end. `stream` is where the
    live stream goes on from this answer: `GET /api/notifications/stream?after=<stream>`."""

    items: list[NotificationView]
    next: int | None
    stream: int


class UpTo(BaseModel):
    """All notifications up to this one, itself included."""

    model_config = ConfigDict(extra="forbid")

    up_to: UUID


class ReadView(BaseModel):
    """How many had been unread."""

    read: int


def sight(who: Identity) -> Sight:
    """What the caller may see."""
    return Sight(who.tenant, who.sub, who.staff)


def check_team(who: Identity, team: str | None) -> None:
    """Raises a 403 problem for one who may not see what a team is told."""
    if team is not None and not who.staff:
        raise staff_only("what a team is told", "team")


def view(entry: Entry) -> NotificationView:
    """As it is shown."""
    return NotificationView(
        id=entry.id,
        kind=entry.kind,
        team=entry.audience if entry.audience_kind == "team" else None,
        title=entry.title,
        body=entry.body,
        href=entry.href,
        created_at=entry.created_at,
        read_at=entry.read_at,
    )


def router(pool: Pool, bearer: Bearer) -> APIRouter:
    """The routes of the list."""
    routes = APIRouter(tags=["notifications"])
    caller = Annotated[Identity, Depends(bearer)]

    @routes.get(
        PATH, responses=answers(403), summary="The caller's notifications; for staff their tenant's teams' as well"
    )
    async def page(
        who: caller,
        unread: bool | None = None,
        team: Word | None = None,
        cursor: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> NotificationsView:
        check_team(who, team)
        async with pool.connection() as conn:
            # What is not in this page is in the stream.
            await inbox.look_once(conn)
            newest = await inbox.head(conn, who.tenant)
            found = await inbox.page(conn, sight(who), Wanted(unread, team), below=cursor, limit=limit + 1)
        more = len(found) > limit
        return NotificationsView(
            items=[view(entry) for entry in found[:limit]], next=found[limit - 1].seq if more else None, stream=newest
        )

    @routes.post(
        PATH + "/{notification_id}/read",
        status_code=HTTPStatus.NO_CONTENT,
        summary="One was read by the caller; again is harmless",
    )
    async def read(notification_id: str, who: caller) -> Response:
        async with pool.connection() as conn:
            known = await inbox.mark_read(conn, sight(who), id_of("notification", notification_id))
        if not known:
            raise not_found("notification")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    @routes.post(PATH + "/read", responses=answers(404), summary="All up to one were read by the caller")
    async def read_up_to(body: UpTo, who: caller) -> ReadView:
        async with pool.connection() as conn:
            read = await inbox.mark_read_up_to(conn, sight(who), body.up_to)
        if read is None:
            raise not_found("notification", "up_to")
        return ReadView(read=read)

    return routes
