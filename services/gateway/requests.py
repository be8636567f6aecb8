"""Filing requests: the one function that does, whichever way they came."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg

from messaging.codec import Codec
from messaging.database import Connection
from messaging.errors import Outage, OutboxFull
from messaging.message import Envelope, Key, new_id
from schemas.events import RequestCreated
from services.gateway.asks import Ask
from services.gateway.records import Channel, NewRequest
from services.gateway.store import requests as store
from web import idempotency

SOURCE = "gateway"

_TRIES = 2
"""The one that is in the way may be erased before it is read; then the place is free."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A request and its event, about to be filed."""

    request: NewRequest
    event: Envelope | Outage
    """Or why there cannot be one yet, which a repeat need not care about."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The request's id; `repeated` when it was filed before, under the same key and with the same body."""

    id: UUID
    repeated: bool


Answer = Receipt | Exception
"""What became of a draft: an exception is for its own caller, as the others may have been filed."""


def draft(
    codec: Codec, whose: Key, ask: Ask, *, channel: Channel = "api", idempotency_key: str | None = None
) -> Draft:
    """Pure but for the new id: the request and its event, in the running trace.

    `codec` was prepared to write RequestCreated, or is expected to be.
    """
    request = NewRequest(
        id=new_id(),
        tenant=whose.tenant,
        sender=whose.sender,
        team=ask.team,
        title=ask.title,
        body=ask.body,
        channel=channel,
        idempotency_key=idempotency_key,
        fingerprint=ask.fingerprint,
    )
    event = RequestCreated(
        request_id=str(request.id),
        tenant=whose.tenant,
        sender=whose.sender,
        team=ask.team,
        title=ask.title,
        body=ask.body,
        channel=channel,
    )
    try:
        return Draft(request, codec.envelope(event, source=SOURCE, subject=event.request_id, key=whose))
    except Outage as unknown:
        return Draft(request, unknown)


async def create_requests(conn: Connection, drafts: Sequence[Draft]) -> list[Answer]:
    """File requests, each with its event `request.created`, in one statement of the connection's transaction. (Before
    it another looks for repeats, if any has a key.)

    Never commits. Answers each draft, in order: with a receipt, or with OutboxFull, the database's error, a 422
    problem when the sender used the key for another ask before, or Outage when those with the key are erased as fast
    as they come.
    """
    answers: dict[UUID, Answer] = {}
    # In one order: two that write some of the same keys at once must not wait for each other.
    left = sorted(drafts, key=lambda draft: draft.request.once or ())
    try:
        for _ in range(_TRIES):
            # Asked first: a repeat is answered also while the outbox is full.
            left = await _unanswered(conn, left, answers)
            left = await _unfiled(conn, left, answers)
        left = await _unanswered(conn, left, answers)
    except (OutboxFull, psycopg.Error) as error:
        answers |= {draft.request.id: error for draft in left}
    else:
        erased = Outage("Requests of this sender are being erased.", "requests")
        answers |= {draft.request.id: erased for draft in left}
    return [answers[draft.request.id] for draft in drafts]


async def create_request(
    conn: Connection,
    codec: Codec,
    whose: Key,
    ask: Ask,
    *,
    channel: Channel = "api",
    idempotency_key: str | None = None,
) -> Receipt:
    """`create_requests` for one; raises what it answers."""
    [answer] = await create_requests(
        conn, [draft(codec, whose, ask, channel=channel, idempotency_key=idempotency_key)]
    )
    return receipt(answer)


def receipt(answer: Answer) -> Receipt:
    """The receipt. Raises what was answered instead."""
    if isinstance(answer, Exception):
        # Several callers may be told by the same one: none is to be shown the others' ways to it.
        raise answer.with_traceback(None)
    return answer


async def _unanswered(conn: Connection, drafts: list[Draft], answers: dict[UUID, Answer]) -> list[Draft]:
    """Answers those that repeat an earlier one; the rest."""
    keys = {once for draft in drafts if (once := draft.request.once) is not None}
    earlier = await store.earlier(conn, keys) if keys else {}
    rest = []
    for draft in drafts:
        once = draft.request.once
        found = None if once is None else earlier.get(once)
        if found is None:
            rest.append(draft)
        elif found.fingerprint != draft.request.fingerprint:
            answers[draft.request.id] = idempotency.reused("request")
        else:
            answers[draft.request.id] = Receipt(found.id, repeated=True)
    return rest


async def _unfiled(conn: Connection, drafts: list[Draft], answers: dict[UUID, Answer]) -> list[Draft]:
    """Files all but those whose key another has used in between, for whose end the statement has waited; the rest."""
    told = [(draft.request, draft.event) for draft in drafts if not isinstance(draft.event, Outage)]
    filed = await store.file(conn, *zip(*told, strict=True)) if told else set()
    answers |= {id_: Receipt(id_, repeated=False) for id_ in filed}
    answers |= {draft.request.id: draft.event for draft in drafts if isinstance(draft.event, Outage)}
    return [draft for draft in drafts if draft.request.id not in answers]
