"""Every event and job: a frozen dataclass for each major version, equal to its newest Avro file.

TYPE and MAJOR are what the record's headers say (`ce_type`, `event_version`); TOPIC is where it travels.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReadingRequested:
    """A job: the document was accepted and waits to be read.

    kind is file, text or url; storage_key and size_bytes (of the stored bytes) are None and 0 while only
    the url is known.
    """

    TYPE: ClassVar[str] = "document.reading_requested"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "documents.jobs"

    document_id: str
    tenant: str
    sender: str
    kind: str
    content_type: str
    storage_key: str | None = None
    url: str | None = None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReceivedV1:
    """As it was written until version 2: size_bytes was 0 while only an address was known. Read, never written."""

    TYPE: ClassVar[str] = "document.received"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "documents.events"

    document_id: str
    tenant: str
    sender: str
    kind: str
    content_type: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReceived:
    """A document was accepted. Written with the document itself, so it comes before all that follows.

    size_bytes is None while only an address is known.
    """

    TYPE: ClassVar[str] = "document.received"
    MAJOR: ClassVar[int] = 2
    TOPIC: ClassVar[str] = "documents.events"

    document_id: str
    tenant: str
    sender: str
    kind: str
    content_type: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentField:
    """One fact found in a document. confidence goes from 0 (a guess) to 1 (certain)."""

    name: str
    value: str
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRead:
    """A document's fields were found and checked. status is waiting_for_review or approved."""

    TYPE: ClassVar[str] = "document.read"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "documents.events"

    document_id: str
    tenant: str
    sender: str
    status: str
    fields: tuple[DocumentField, ...]
    attempts: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFailed:
    """A document could not be read, and nobody tries again by itself.

    reason is a short word for machines, error one sentence a person understands.
    """

    TYPE: ClassVar[str] = "document.failed"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "documents.events"

    document_id: str
    tenant: str
    sender: str
    reason: str
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReviewed:
    """A reviewer decided on a document that waited for one. decision is approved or rejected."""

    TYPE: ClassVar[str] = "document.reviewed"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "documents.events"

    document_id: str
    tenant: str
    sender: str
    decision: str
    reviewer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCreated:
    """A request was filed; `team` is to answer it. channel is api, chat or message."""

    TYPE: ClassVar[str] = "request.created"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "requests.events"

    request_id: str
    tenant: str
    sender: str
    team: str
    title: str
    body: str
    channel: str = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationDeliveryRequested:
    """A job: one notification is to be carried to one address. channel is email or webhook.

    sender is whose slots it uses: the person it is for, or `team:` and the team's name.
    """

    TYPE: ClassVar[str] = "notification.delivery_requested"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "notifications.deliveries"

    delivery_id: str
    tenant: str
    sender: str
    channel: str


ALL: tuple[type[Any], ...] = (
    DocumentReadingRequested,
    DocumentReceivedV1,
    DocumentReceived,
    DocumentRead,
    DocumentFailed,
    DocumentReviewed,
    RequestCreated,
    NotificationDeliveryRequested,
)
