"""The HTTP face of the inbox: parse, call, answer."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from messaging.database import Pool
from services.documents import store, submissions
from services.documents.intake import Intake, Receipt
from services.documents.records import Stored
from services.documents.settings import DocumentsSettings
from web import idempotency
from web.openapi import answers
from web.problems import BadInput, Problem, id_of, is_json, media_type, not_found
from web.tokens import Bearer, Identity, require, staff_only

MAY_SUBMIT = frozenset({"sender", "reviewer", "agent", "admin"})
PATH = "/api/documents"

Status = Literal["queued", "reading", "retrying", "waiting_for_review", "approved", "rejected", "failed"]

_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            },
            "application/json": {
                "schema": {
                    "oneOf": [
                        {"type": "object", "required": [name], "properties": {name: {"type": "string"}}}
                        for name in ("text", "url")
                    ]
                }
            },
        },
    },
    **idempotency.PARAMETER,
}


class Accepted(BaseModel):
    """A document was taken in and waits to be read; `href` shows how it stands. A repeat under the same
    Idempotency-Key is answered as the first time, "queued" included, however far the document has come since; its
    header says `Idempotency-Replayed: true`."""

    id: UUID
    status: Literal["queued"]
    href: str


class FieldView(BaseModel):
    """A field's value and how sure its reader is, from 0 to 1."""

    value: str
    confidence: float


class DocumentView(BaseModel):
    """A document as it stands. After its time a settled document's file is removed (`file_removed_at`); what was read
    of it stays.
    """

    id: UUID
    href: str
    sender: str
    kind: submissions.Kind
    status: Status
    file_name: str | None
    content_type: str
    size_bytes: int
    file_removed_at: datetime | None
    url: str | None
    fields: dict[str, FieldView]
    model: str | None
    attempts: int
    error: str | None
    created_at: datetime
    updated_at: datetime


class PageView(BaseModel):
    """Documents, newest first. `next` is the cursor of the page after, null at the end."""

    items: list[DocumentView]
    next: UUID | None


def router(intake: Intake, pool: Pool, bearer: Bearer, settings: DocumentsSettings) -> APIRouter:
    """The routes of the inbox."""
    routes = APIRouter(tags=["documents"])
    caller = Annotated[Identity, Depends(bearer)]

    @routes.post(
        PATH,
        status_code=202,
        response_model=Accepted,
        openapi_extra=_BODY,
        responses=answers(403, 415, 429),
        summary="Hand in a document",
    )
    async def submit(request: Request, who: caller) -> JSONResponse:
        require(who, MAY_SUBMIT)
        return _accepted(await _take(request, intake, who, settings))

    @routes.get(PATH + "/{document_id}", response_model=DocumentView, summary="One document")
    async def get(document_id: str, who: caller) -> DocumentView:
        async with pool.connection() as conn:
            stored = await store.get(conn, who.tenant, id_of("document", document_id))
        if stored is None or not (who.staff or stored.sender == who.sub):
            raise not_found("document")
        return _view(stored)

    @routes.get(
        PATH,
        response_model=PageView,
        responses=answers(403),
        summary="Documents: a sender's own, or the tenant's for its staff",
    )
    async def page(
        who: caller,
        status: Status | None = None,
        sender: str | None = None,
        cursor: UUID | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> PageView:
        if not who.staff:
            if sender not in (None, who.sub):
                raise staff_only("other senders' documents", "sender")
            sender = who.sub
        async with pool.connection() as conn:
            found = await store.page(conn, who.tenant, sender=sender, status=status, before=cursor, limit=limit + 1)
        more = len(found) > limit
        return PageView(items=[_view(stored) for stored in found[:limit]], next=found[limit - 1].id if more else None)

    return routes


async def _take(request: Request, intake: Intake, who: Identity, settings: DocumentsSettings) -> Receipt:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "unknown-encoding", "Send the body as it is, not compressed.", field="Content-Encoding")
    kind = media_type(request.headers)
    length = int(request.headers.get("content-length", "-1"))
    bad = BadInput()
    key: str | None = None
    with bad:
        key = idempotency.parse(request.headers)
    if kind == "multipart/form-data" and length != 0:
        # Not read for a key that is refused: it may be long.
        bad.tell()
        declared = request.headers["content-type"]
        return await intake.file(who, key, request.stream(), declared, length if length > 0 else None)
    body = await _read(request, length, settings.max_text_bytes)
    if body and not is_json(kind):
        detail = f"A body of this type cannot be taken. Send {submissions.WAYS}."
        raise Problem(415, "unknown-type", detail, field="Content-Type")
    handed: submissions.Text | submissions.Link | None = None
    with bad:
        handed = submissions.parse_json(body, settings.fetch_allow)
    bad.tell()
    assert handed is not None
    if isinstance(handed, submissions.Link):
        return await intake.link(who, key, handed)
    return await intake.text(who, key, handed)


async def _read(request: Request, length: int, limit: int) -> bytes:
    """The whole body, as long as it stays within `limit` bytes."""
    if length > limit:
        raise submissions.too_large("text", limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise submissions.too_large("text", limit)
    return bytes(body)


def _accepted(receipt: Receipt) -> JSONResponse:
    href = f"{PATH}/{receipt.id}"
    headers = {"Location": href} | (idempotency.REPLAYED if receipt.repeated else {})
    return JSONResponse({"id": str(receipt.id), "status": "queued", "href": href}, 202, headers)


def _view(stored: Stored) -> DocumentView:
    found: dict[str, Any] = {
        field["name"]: FieldView(value=field["value"], confidence=field["confidence"]) for field in stored.fields
    }
    return DocumentView(
        id=stored.id,
        href=f"{PATH}/{stored.id}",
        sender=stored.sender,
        kind=stored.kind,
        status=stored.status,  # type: ignore[arg-type]  # the table's check holds it to the same list
        file_name=stored.file_name,
        content_type=stored.content_type,
        size_bytes=stored.size_bytes,
        file_removed_at=stored.file_removed_at,
        url=stored.url,
        fields=found,
        model=stored.model,
        attempts=stored.attempts,
        error=stored.error,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )
