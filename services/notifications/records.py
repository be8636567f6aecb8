"""The shapes of what is kept: notifications, subscriptions, deliveries."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

AudienceKind = Literal["person", "team"]
Channel = Literal["email", "webhook"]
State = Literal["queued", "sending", "delivered", "failed"]


@dataclass(frozen=True, slots=True)
class Sight:
    """Who looks: a person sees what is theirs, staff also what is their tenant's teams'."""

    tenant: str
    reader: str
    staff: bool

    def sees(self, audience_kind: str, audience: str) -> bool:
        """Whether a notification of the tenant for this audience is theirs to see."""
        return self.staff if audience_kind == "team" else audience == self.reader


@dataclass(frozen=True, slots=True)
class Entry:
    """A notification as it is kept. seq orders those of one tenant by their commits."""

    id: UUID
    seq: int
    audience_kind: AudienceKind
    audience: str
    kind: str
    title: str
    body: str
    href: str
    created_at: datetime
    read_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a subscription is, or a delivery."""

    tenant: str
    kind: AudienceKind
    name: str

    @property
    def sender(self) -> str:
        """Whose slots its deliveries use."""
        return self.name if self.kind == "person" else f"team:{self.name}"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where its owner wants to be told of these kinds; the secret is not among what is shown."""

    id: UUID
    owner_kind: AudienceKind
    owner: str
    channel: Channel
    address: str
    kinds: list[str]
    created_by: str
    created_at: datetime
    disabled_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery as people see it."""

    id: UUID
    notification: UUID
    subscription: UUID | None
    owner_kind: AudienceKind
    owner: str
    channel: Channel
    address: str
    kind: str
    title: str
    state: State
    attempts: int
    error: str | None
    created_at: datetime
    updated_at: datetime
    delivered_at: datetime | None


@dataclass(frozen=True, slots=True)
class Order:
    """A delivery that is being carried out, with all it says. `unwanted`: what became of its subscription since."""

    id: UUID
    tenant: str
    channel: Channel
    address: str
    secret: str | None = field(repr=False)
    unwanted: Literal["removed", "disabled"] | None
    notification: UUID
    event_id: str
    kind: str
    title: str
    body: str
    href: str
    created_at: datetime

    @property
    def wanted(self) -> bool:
        """Whether its subscription is there and in use."""
        return self.unwanted is None
