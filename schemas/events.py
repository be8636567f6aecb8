"""Every event and job, in its newest version: one frozen dataclass each, equal to its newest Avro file.

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
class DocumentReceived:
    """A document was accepted. Written with the document itself, so it comes before all that follows."""

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


ALL: tuple[type[Any], ...] = (DocumentReadingRequested, DocumentReceived, DocumentRead, DocumentFailed)
