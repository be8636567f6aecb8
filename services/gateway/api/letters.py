"""Dead letters over HTTP."""

import base64
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from messaging.database import Pool
from services.gateway.decisions import Decisions
from services.gateway.records import Content, Filter, Listed, Sight, State
from services.gateway.store import staff
from web.openapi import answers
from web.problems import Problem, bad_input, id_of, not_found
from web.tokens import STAFF, Bearer, Identity, require

PATH = "/api/admin/dead-letters"
DECIDERS = frozenset({"admin"})

PREVIEW_BYTES = 2048
HEADER_BYTES = 1024
KEY_BYTES = 1024
MOST_HEADERS = 100

Word = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00]+$")]


class LetterView(BaseModel):
    """A dead letter. `generation` is how often it had been sent back before it died this time."""

    id: UUID
    href: str
    source: str
    consumer: str
    message_id: str
    generation: int
    owner: str | None
    type: str | None
    subject: str | None
    reason: str
    error: str | None
    attempts: int | None
    origin: str
    size_bytes: int
    died_at: AwareDatetime
    stored_at: AwareDatetime
    state: State
    decided_by: str | None
    decided_at: AwareDatetime | None
    sent_at: AwareDatetime | None
    send_error: str | None


class LettersView(BaseModel):
    """Letters, the last that arrived first. `next` is the cursor of the page after, null at the end."""

    items: list[LetterView]
    next: UUID | None


class BytesView(BaseModel):
    """Bytes, or their beginning: as text where they are UTF-8, else in base64. `bytes` is how many there are."""

    bytes: int
    text: str | None
    base64: str | None
    cut_off: bool


class HeaderView(BaseModel):
    """One header of the original record; a null value is not an empty one."""

    name: str
    value: BytesView | None


class WholeLetterView(LetterView):
    """A dead letter with what can be shown of its record. `headers` is null when they cannot be read."""

    key: BytesView | None
    value: BytesView | None
    headers: list[HeaderView] | None
    headers_left_out: int


class Wanted(BaseModel):
    """Which open letters are meant; at least one of the four. `before` is about the time they died."""

    model_config = ConfigDict(extra="forbid")

    source: Word | None = None
    owner: Word | None = None
    reason: Word | None = None
    before: AwareDatetime | None = None
    unowned: bool = Field(False, description="An operator's: letters that no tenant owns, instead of one's own.")


class DecidedView(BaseModel):
    """On how many letters was decided."""

    letters: int


def router(pool: Pool, bearer: Bearer, decisions: Decisions, operator_tenant: str | None) -> APIRouter:
    """The routes. Admins of `operator_tenant` also see letters that no tenant owns."""
    routes = APIRouter(tags=["dead letters"])
    caller = Annotated[Identity, Depends(bearer)]

    def sight(who: Identity) -> Sight:
        return Sight(who.tenant, "admin" in who.roles and who.tenant == operator_tenant)

    def decider(who: Identity) -> Sight:
        require(who, DECIDERS)
        return sight(who)

    def meant(seen: Sight, wanted: Wanted) -> Filter:
        if not (wanted.source or wanted.owner or wanted.reason or wanted.before):
            raise bad_input("body", "no-filter", "Say which letters: source, owner, reason or before.")
        _check_unowned(seen, wanted.unowned)
        return Filter(**wanted.model_dump())

    @routes.get(PATH, responses=answers(403), summary="The tenant's dead letters")
    async def page(
        who: caller,
        source: Word | None = None,
        owner: Word | None = None,
        state: State | None = None,
        reason: Word | None = None,
        unowned: bool = False,
        cursor: UUID | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> LettersView:
        require(who, STAFF)
        _check_unowned(sight(who), unowned)
        wanted = Filter(source=source, owner=owner, state=state, reason=reason, unowned=unowned)
        async with pool.connection() as conn:
            found = await staff.page(conn, sight(who), wanted, below=cursor, limit=limit + 1)
        more = len(found) > limit
        return LettersView(
            items=[_view(letter) for letter in found[:limit]], next=found[limit - 1].id if more else None
        )

    @routes.get(
        PATH + "/{letter_id}",
        responses=answers(403),
        summary="One dead letter, with its headers and the beginning of its value",
    )
    async def get(letter_id: str, who: caller) -> WholeLetterView:
        require(who, STAFF)
        known_as = id_of("dead letter", letter_id)
        async with pool.connection() as conn:
            letter = await staff.get(conn, sight(who), known_as)
            content = await staff.content(conn, sight(who), known_as, PREVIEW_BYTES)
        if letter is None or content is None:
            raise not_found("dead letter")
        return WholeLetterView(**_view(letter).model_dump(), **_content(content))

    @routes.post(
        PATH + "/send-back",
        status_code=HTTPStatus.ACCEPTED,
        responses=answers(403),
        summary="Send many back to their consumers",
    )
    async def send_many_back(wanted: Wanted, who: caller) -> DecidedView:
        seen = decider(who)
        return DecidedView(letters=await decisions.many(seen, meant(seen, wanted), "sending", who.sub))

    @routes.post(PATH + "/discard", responses=answers(403), summary="Discard many")
    async def discard_many(wanted: Wanted, who: caller) -> DecidedView:
        seen = decider(who)
        return DecidedView(letters=await decisions.many(seen, meant(seen, wanted), "discarded", who.sub))

    @routes.post(
        PATH + "/{letter_id}/send-back",
        status_code=HTTPStatus.ACCEPTED,
        responses=answers(403, 409),
        summary="Send one back to its consumer, once; 409 tells who did before",
    )
    async def send_back(letter_id: str, who: caller) -> LetterView:
        return _view(await decisions.send_back(decider(who), id_of("dead letter", letter_id), who.sub))

    @routes.post(
        PATH + "/{letter_id}/discard",
        responses=answers(403, 409),
        summary="Discard one: it stays to be seen, and cannot be sent back",
    )
    async def discard(letter_id: str, who: caller) -> LetterView:
        return _view(await decisions.discard(decider(who), id_of("dead letter", letter_id), who.sub))

    return routes


def _check_unowned(seen: Sight, unowned: bool) -> None:
    if unowned and not seen.operator:
        detail = (
            "Letters that no tenant owns are for the admins of the operator's tenant, the one that the setting "
            "WORKBOT_OPERATOR_TENANT of the gateway names; unset, nobody sees them."
        )
        raise Problem(HTTPStatus.FORBIDDEN, "wrong-role", detail, field="unowned")


def _view(letter: Listed) -> LetterView:
    names = LetterView.model_fields.keys() - {"href"}
    return LetterView(href=f"{PATH}/{letter.id}", **{name: getattr(letter, name) for name in names})


def _content(content: Content) -> dict[str, Any]:
    pairs = None if content.names is None else list(zip(content.names, content.values or (), strict=True))
    return {
        "key": _bytes(content.key, KEY_BYTES),
        "value": _bytes(content.start, PREVIEW_BYTES, content.value_bytes),
        "headers": None if pairs is None else [_header(*pair) for pair in pairs[:MOST_HEADERS]],
        "headers_left_out": max(0, len(pairs or ()) - MOST_HEADERS),
    }


def _header(name: bytes, value: bytes | None) -> HeaderView:
    return HeaderView(name=name[:HEADER_BYTES].decode("utf-8", "replace"), value=_bytes(value, HEADER_BYTES))


def _bytes(raw: bytes | None, most: int, size: int | None = None) -> BytesView | None:
    if raw is None:
        return None
    start, size = raw[:most], len(raw) if size is None else size
    text = _utf8(start, cut_off=size > len(start))
    encoded = base64.b64encode(start).decode() if text is None else None
    return BytesView(bytes=size, text=text, base64=encoded, cut_off=size > len(start))


def _utf8(raw: bytes, *, cut_off: bool) -> str | None:
    """As text, if it is; a character that the cut went through is left out."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_through = cut_off and error.reason == "unexpected end of data"
        return raw[: error.start].decode("utf-8") if cut_through else None
