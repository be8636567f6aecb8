"""Pure: what an event says to people, and to whom.

    request.created                 the team that is to answer it
    document.read   waits           the team `reviewers`, who act; the sender, who need not wonder
                    approved        the sender
    document.reviewed               the sender
    document.failed                 the sender

A document that was merely received is no news to the one who sent it (`QUIET`).
"""

import unicodedata
from dataclasses import dataclass
from typing import Any, Final

from messaging.errors import NotRetryable
from messaging.message import MAX_ID, Key
from schemas.events import (
    DocumentFailed,
    DocumentRead,
    DocumentReceived,
    DocumentReceivedV1,
    DocumentReviewed,
    RequestCreated,
)
from services.notifications.records import AudienceKind

QUIET: Final[tuple[type[Any], ...]] = (DocumentReceivedV1, DocumentReceived)
"""Events that nobody is told of."""

REVIEWERS: Final = "reviewers"
"""The team that is told when a document waits for a person."""

REQUEST_CREATED: Final = "request_created"
WAITS: Final = "document_waits"
APPROVED: Final = "document_approved"
REJECTED: Final = "document_rejected"
FAILED: Final = "document_failed"

KINDS: Final[dict[AudienceKind, tuple[str, ...]]] = {
    "person": (WAITS, APPROVED, REJECTED, FAILED),
    "team": (REQUEST_CREATED, WAITS),
}
"""What each kind of audience is ever told."""

DEFAULT_KINDS: Final[dict[AudienceKind, tuple[str, ...]]] = {
    "person": (APPROVED, REJECTED, FAILED),
    "team": KINDS["team"],
}
"""What a subscription is for unless it says otherwise: a person's, the completion of their documents."""

MAX_TITLE = 200
MAX_BODY = 2000
MAX_TEAM = 100
"""Characters: no request can name a team by more."""
MAX_TEAM_BYTES = 190
"""A team's deliveries travel under the key `<tenant>:team:<team>`, and a part of a key has 200 bytes."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing said to one audience. title is one line; href the path, on our origin, of what it is about."""

    tenant: str
    audience_kind: AudienceKind
    audience: str
    kind: str
    title: str
    body: str
    href: str


def notices(event: object) -> list[Notice]:
    """What an event says. Raises NotRetryable for one that says what we have no words for."""
    match event:
        case RequestCreated():
            _check_names(event.tenant, event.sender, event.request_id)
            return [_of_request(event)]
        case DocumentRead() | DocumentReviewed() | DocumentFailed():
            _check_names(event.tenant, event.sender, event.document_id)
    match event:
        case DocumentRead(status="waiting_for_review"):
            waits = "A person has to look at it before it is approved."
            return [
                _of_document(event, WAITS, "waits for your review", waits, team=REVIEWERS),
                _of_document(event, WAITS, "waits for a reviewer", waits),
            ]
        case DocumentRead(status="approved"):
            return [_of_document(event, APPROVED, "was read and approved", "Every field was read with confidence.")]
        case DocumentReviewed(decision="approved"):
            return [_of_document(event, APPROVED, "was approved", f"{line(event.reviewer, 200)} reviewed it.")]
        case DocumentReviewed(decision="rejected"):
            return [_of_document(event, REJECTED, "was rejected", f"{line(event.reviewer, 200)} reviewed it.")]
        case DocumentFailed():
            return [_of_document(event, FAILED, "could not be read", text(event.error, MAX_BODY))]
        case DocumentRead(status=said) | DocumentReviewed(decision=said):
            raise NotRetryable(f"Nobody knows what to tell of a document that is {said[:80]!r}.", "unknown_status")
        case _:
            raise NotRetryable(f"Nobody is told of a {type(event).__name__}.", "unknown_status")


def line(words: str, limit: int) -> str:
    """On one line, without control characters, cut off after `limit` characters."""
    return text(" ".join(words.split()), limit)


def text(words: str, limit: int) -> str:
    """Without control characters but line ends and tabs, cut off after `limit` characters."""
    kept = "".join(c for c in words[: 2 * limit] if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def _check_names(tenant: str, sender: str, subject: str) -> None:
    # What no producer of ours writes would be refused by the database, again at each try.
    try:
        owner = Key.parse(f"{tenant}:{sender}".encode())
    except ValueError as error:
        raise NotRetryable(f"The event does not say whose it is: {error}.", "no_owner") from error
    if owner.tenant != tenant:
        raise NotRetryable("The event's tenant holds a colon, which ends it in a key.", "no_owner")
    if not subject.isprintable() or not 0 < len(subject) <= MAX_ID:
        raise NotRetryable("The event is about something that has no usable id.", "unusable_id")


def _of_request(event: RequestCreated) -> Notice:
    if not event.team.isprintable() or not 0 < len(event.team.encode()) <= MAX_TEAM_BYTES:
        raise NotRetryable("The request's team has no name that anybody could be found by.", "unusable_team")
    title = line(f"New request: {event.title}", MAX_TITLE)
    href = f"/api/requests/{event.request_id}"
    body = text(event.body, MAX_BODY)
    return Notice(event.tenant, "team", event.team, REQUEST_CREATED, title, body, href)


def _of_document(
    event: DocumentRead | DocumentReviewed | DocumentFailed,
    kind: str,
    says: str,
    body: str,
    team: str | None = None,
) -> Notice:
    whose = "A document" if team else "Your document"
    return Notice(
        tenant=event.tenant,
        audience_kind="team" if team else "person",
        audience=team or event.sender,
        kind=kind,
        title=f"{whose} {says}",
        body=body,
        href=f"/api/documents/{event.document_id}",
    )
