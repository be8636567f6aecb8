"""GET /api/queues: what waits and runs in this process, for the staff of a tenant."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from messaging.queues import Queue
from web.openapi import answers
from web.tokens import STAFF, Bearer, Identity, require

PATH = "/api/queues"
FRESH_SECONDS = 1.0
"""How long an answer is given again: looking is a pass over all that waits."""
_TENANTS = 1000

Look = Callable[[str], Queue]
"""The queue of one consumer, as a tenant may see it."""


class QueuesView(BaseModel):
    """One entry per consumer of this process."""

    queues: list[Queue]


def router(bearer: Bearer, looks: Mapping[str, Look]) -> APIRouter:
    """The one route. `looks` by the consumer's name."""
    routes = APIRouter(tags=["queues"])
    recent: dict[str, tuple[float, QueuesView]] = {}

    @routes.get(
        PATH, responses=answers(403), summary="What waits and runs here, sender by sender, of the caller's tenant"
    )
    async def queues(who: Annotated[Identity, Depends(bearer)]) -> QueuesView:
        require(who, STAFF)
        now = time.monotonic()
        known = recent.get(who.tenant)
        if known is not None and now - known[0] < FRESH_SECONDS:
            return known[1]
        if len(recent) >= _TENANTS:
            recent.clear()
        view = QueuesView(queues=[look(who.tenant) for look in looks.values()])
        recent[who.tenant] = (now, view)
        return view

    return routes
