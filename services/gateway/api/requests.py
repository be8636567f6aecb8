"""Requests over HTTP."""

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from messaging.database import Pool
from messaging.message import MAX_KEY_PART, Key
from services.gateway.asks import MAX_BODY, MAX_TEAM, MAX_TITLE, parse
from services.gateway.desk import Desk
from services.gateway.records import Channel, Filed, Wanted
from services.gateway.store import requests as store
from web import idempotency
from web.openapi import answers
from web.problems import BadInput, id_of, not_found
from web.tokens import Bearer, Identity, require, staff_only

PATH = "/api/requests"
MAY_FILE = frozenset({"sender", "reviewer", "agent", "admin"})


class AskBody(BaseModel):
    """A request to be filed."""

    model_config = ConfigDict(extra="forbid")

    title: str = Field(description=f"One line, 1 to {MAX_TITLE} characters.")
    body: str = Field("", description=f"Up to {MAX_BODY:,} characters.")
    team: str = Field(description=f"Who is to answer: 1 to {MAX_TEAM} printable characters, no colon.")


class FiledView(BaseModel):
    """A request was filed; `href` shows it."""

    id: UUID
    href: str


class RequestView(FiledView):
    """A request as it stands."""

    sender: str
    team: str
    title: str
    body: str
    channel: Channel
    created_at: AwareDatetime


class RequestsView(BaseModel):
    """Requests, newest first. `next` is the cursor of the page after, null at the end."""

    items: list[RequestView]
    next: UUID | None


def router(pool: Pool, bearer: Bearer, desk: Desk) -> APIRouter:
    """The routes. `pool` is in autocommit."""
    routes = APIRouter(tags=["requests"])
    caller = Annotated[Identity, Depends(bearer)]

    @routes.post(
        PATH,
        status_code=HTTPStatus.CREATED,
        response_model=FiledView,
        openapi_extra=idempotency.PARAMETER,
        responses=answers(403),
        summary="File a request; its team is told",
    )
    async def create(asked: AskBody, request: Request, who: caller) -> JSONResponse:
        require(who, MAY_FILE)
        bad = BadInput()
        with bad:
            key = idempotency.parse(request.headers)
        with bad:
            ask = parse(asked.title, asked.body, asked.team)
        bad.tell()
        receipt = await desk.file(Key(who.tenant, who.sub), ask, key)
        href = f"{PATH}/{receipt.id}"
        headers = {"Location": href} | (idempotency.REPLAYED if receipt.repeated else {})
        return JSONResponse({"id": str(receipt.id), "href": href}, HTTPStatus.CREATED, headers)

    @routes.get(PATH + "/{request_id}", summary="One request")
    async def get(request_id: str, who: caller) -> RequestView:
        async with pool.connection() as conn:
            filed = await store.get(conn, who.tenant, id_of("request", request_id))
        if filed is None or not (who.staff or filed.sender == who.sub):
            raise not_found("request")
        return _view(filed)

    @routes.get(
        PATH, responses=answers(403), summary="Requests: a sender's own, or the tenant's for its staff, newest first"
    )
    async def page(
        who: caller,
        team: Annotated[str, StringConstraints(max_length=MAX_TEAM)] | None = None,
        sender: Annotated[str, StringConstraints(max_length=MAX_KEY_PART)] | None = None,
        cursor: UUID | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> RequestsView:
        if not who.staff:
            if sender not in (None, who.sub):
                raise staff_only("other senders' requests", "sender")
            sender = who.sub
        async with pool.connection() as conn:
            found = await store.page(conn, who.tenant, Wanted(sender=sender, team=team, before=cursor), limit + 1)
        more = len(found) > limit
        return RequestsView(
            items=[_view(filed) for filed in found[:limit]], next=found[limit - 1].id if more else None
        )

    return routes


def _view(filed: Filed) -> RequestView:
    names = RequestView.model_fields.keys() - {"href"}
    return RequestView(href=f"{PATH}/{filed.id}", **{name: getattr(filed, name) for name in names})
