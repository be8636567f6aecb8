"""What waits and runs, over all workers, over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from messaging.queues import Queue
from services.gateway.workers import Workers, add_up
from web.openapi import answers
from web.tokens import STAFF, Bearer, Identity, require

PATH = "/api/admin/queues"


class WorkerView(BaseModel):
    """One worker that was asked. `silent` says why it is not in the sums; null when it is."""

    address: str
    silent: str | None


class QueuesView(BaseModel):
    """One entry per consumer, summed over the workers that answered."""

    queues: list[Queue]
    workers: list[WorkerView]


def router(bearer: Bearer, workers: Workers) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["queues"])

    @routes.get(PATH, responses=answers(403), summary="What waits and runs, by sender of the caller's tenant")
    async def queues(request: Request, who: Annotated[Identity, Depends(bearer)]) -> QueuesView:
        require(who, STAFF)
        answers = await workers.ask(request.headers["authorization"])
        return QueuesView(
            queues=add_up([queue for answer in answers for queue in answer.queues]),
            workers=[WorkerView(address=answer.address, silent=answer.silent) for answer in answers],
        )

    return routes
