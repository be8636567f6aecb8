"""Notifications live, as server-sent events."""

import time
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from messaging.errors import Outage
from services.notifications.api.inbox import MAX_SEQ, PATH, Word, check_team, sight, view
from services.notifications.feed import STREAMS, Closed, Dropped, Feed, Follower, TooMany
from services.notifications.records import Entry
from web import sse
from web.openapi import answers
from web.problems import BUSY_RETRY_SECONDS, Problem
from web.tokens import Bearer, Identity

EVENT = "notification"
RETRY_SECONDS = 2.0
LONGEST_SECONDS = 3600.0
"""After which a client has to come back; sooner when its token ends, for it needs one that is still good."""

_STREAM = {
    "responses": {
        "200": {
            "description": (
                "Events named `notification`, each with a notification as JSON, and a number as its id. It begins "
                "behind Last-Event-ID (or `after`); without either, or with a number that is not reached yet, with "
                "what comes from now on. After a break come back with the last id: nothing is left out, nothing "
                "comes twice. `team` narrows it to what that team is told."
            ),
            "content": {sse.MEDIA_TYPE: {"schema": {"type": "string"}}},
        }
    },
    "parameters": [{"name": "Last-Event-ID", "in": "header", "schema": {"type": "string", "maxLength": 18}}],
}


def router(feed: Feed, bearer: Bearer) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["notifications"])

    @routes.get(
        PATH + "/stream",
        status_code=HTTPStatus.OK,
        response_class=sse.EventStream,
        responses=answers(403, 422, 429),
        openapi_extra=_STREAM,
        summary="The caller's notifications as they come",
    )
    async def stream(
        request: Request,
        who: Annotated[Identity, Depends(bearer)],
        after: Annotated[int | None, Query(ge=0, le=MAX_SEQ)] = None,
        team: Word | None = None,
    ) -> sse.EventStream:
        check_team(who, team)
        try:
            follower = await feed.follow(sight(who), sse.cursor(request, after), team)
        except TooMany:
            detail = f"You follow {STREAMS} streams already; close one first."
            raise Problem(429, "too-many-streams", detail, headers={"Retry-After": str(BUSY_RETRY_SECONDS)}) from None
        except Closed:
            raise Outage("This process is stopping.", "process") from None
        return sse.EventStream(parts(follower, who.expires_at), lambda: feed.leave(follower))

    return routes


async def parts(follower: Follower, expires_at: int) -> AsyncGenerator[bytes, None]:
    """What is sent, until the follower's end or the token's (Unix seconds)."""
    yield sse.hello(follower.after, RETRY_SECONDS)
    until = min(time.time() + LONGEST_SECONDS, expires_at)
    try:
        async for entry in follower.past():
            yield _event(entry)
            if time.time() >= until:
                return
        while (left := until - time.time()) > 0:
            following = await follower.next(min(left, sse.HEARTBEAT_SECONDS))
            if following is not None:
                yield _event(following)
            elif left > sse.HEARTBEAT_SECONDS:
                yield sse.HEARTBEAT
    except (Dropped, Closed):
        # The client comes back by itself, with the last number it was given.
        return


def _event(entry: Entry) -> bytes:
    return sse.event(view(entry).model_dump(mode="json"), name=EVENT, number=entry.seq)
