"""The shapes of what is kept: dead letters, and requests on their way in and as they stand."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

State = Literal["open", "sending", "sent", "discarded"]


@dataclass(frozen=True, slots=True)
class Sight:
    """Whose letters a caller sees: their tenant's; an operator also those that no tenant owns."""

    tenant: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant; None leaves a part open. `before` is about the time they died.

    `unowned` are an operator's: those without a tenant instead of the caller's own.
    """

    source: str | None = None
    owner: str | None = None
    reason: str | None = None
    state: State | None = None
    before: datetime | None = None
    unowned: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What a dead letter says of itself.

    Its identity is (source, consumer, message_id, generation). Without a usable key it has neither tenant nor owner.
    """

    source: str
    consumer: str
    message_id: str
    generation: int
    tenant: str | None
    owner: str | None
    type: str | None
    subject: str | None
    reason: str
    error: str | None
    attempts: int | None
    origin: str
    died_at: datetime


@dataclass(frozen=True, slots=True)
class Listed(Told):
    """A dead letter as it stands, without the record itself."""

    id: UUID
    size_bytes: int
    stored_at: datetime
    state: State
    decided_by: str | None
    decided_at: datetime | None
    sent_at: datetime | None
    send_error: str | None


@dataclass(frozen=True, slots=True)
class Content:
    """The record of a dead letter, the value cut off after some bytes. Without `names` its headers are unreadable."""

    key: bytes | None
    start: bytes | None
    value_bytes: int | None
    names: list[bytes] | None
    values: list[bytes | None] | None


@dataclass(frozen=True, slots=True)
class Due:
    """A letter to be sent back, claimed by this process for a while."""

    id: UUID
    source: str
    consumer: str
    generation: int
    origin: str
    key: bytes | None
    value: bytes | None
    names: list[bytes]
    values: list[bytes | None]

    def headers(self) -> list[tuple[str, bytes | None]]:
        """The original headers, in order."""
        return [(name.decode(), value) for name, value in zip(self.names, self.values, strict=True)]


Channel = Literal["api", "chat", "message"]
"""Which way a request came."""


class OnceKey(NamedTuple):
    """Under what a sender files only once. They sort, so that whoever writes several does so in one order."""

    tenant: str
    sender: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request about to be filed. `fingerprint` tells a repeat from another one under the same key."""

    id: UUID
    tenant: str
    sender: str
    team: str
    title: str
    body: str
    channel: Channel
    idempotency_key: str | None
    fingerprint: bytes

    @property
    def once(self) -> OnceKey | None:
        """None when it has no idempotency key."""
        if self.idempotency_key is None:
            return None
        return OnceKey(self.tenant, self.sender, self.idempotency_key)


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was filed under an idempotency key before."""

    id: UUID
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Filed:
    """A request as it is kept."""

    id: UUID
    sender: str
    team: str
    title: str
    body: str
    channel: Channel
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which requests of a tenant are meant; None leaves a part open. `before` is the last id of the page before."""

    sender: str | None = None
    team: str | None = None
    before: UUID | None = None
