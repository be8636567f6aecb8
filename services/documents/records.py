"""The shapes of what is kept: a document on its way in, what came of that, and a document as it stands."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from services.documents.submissions import Kind


@dataclass(frozen=True, slots=True)
class Submission:
    """A document about to be accepted. `fingerprint` tells a repeat from another body under the same key."""

    id: UUID
    tenant: str
    sender: str
    kind: Kind
    content_type: str
    size_bytes: int
    fingerprint: bytes
    file_name: str | None = None
    storage_key: str | None = None
    url: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was accepted under an idempotency key before."""

    id: UUID
    fingerprint: bytes


class Outcome(Enum):
    """What came of a submission. But for ACCEPTED nothing was written."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    """There is a document under its idempotency key already."""
    LIMIT_REACHED = "limit_reached"
    """Its sender has as many documents waiting as is allowed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as it is kept. `fields` are {name, value, confidence} in the order found. One whose file has had its
    time (`file_removed_at`) has no `storage_key` any more.
    """

    id: UUID
    tenant: str
    sender: str
    kind: Kind
    status: str
    file_name: str | None
    content_type: str
    size_bytes: int
    storage_key: str | None
    file_removed_at: datetime | None
    url: str | None
    generation: int
    attempts: int
    fields: list[dict[str, Any]]
    model: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime
