"""The vocabulary of a load test: what was sent, what ran, what the provider saw. Imports nothing of ours.

All times are seconds since the Unix epoch on this machine's clock; all processes of a run share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["done", "retry", "dead", "fenced", "released"]


@dataclass(frozen=True, slots=True)
class Sent:
    """One document as the driver sent it. `id` is None while (or when) the API never accepted it."""

    index: int
    sender: str
    reference: str
    sha256: str
    broken: bool
    id: str | None
    posted_at: float
    """Start of the first POST; an ideal queue would have the job from here on."""
    accepted_at: float | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one job on one slot, from the consumer's own records."""

    document: str
    sender: str
    attempt: int
    ready_at: float
    started_at: float
    finished_at: float
    outcome: Outcome
    lent: bool = False
    error: str | None = None

    @property
    def seconds(self) -> float:
        """How long the run held its slot."""
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One request as the provider saw it. `document` is its invoice number, or its SHA-256 when it has none."""

    document: str
    call: int
    attempt: int
    started_at: float
    finished_at: float
    status: int

    @property
    def seconds(self) -> float:
        """The provider's own time for this request."""
        return self.finished_at - self.started_at


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as the service has it."""

    id: str
    sender: str
    status: str
    attempts: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A record found on a topic: an event, or a dead letter."""

    topic: str
    id: str
    type: str
    subject: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything one run left behind, from four independent places: driver, service, consumer, provider."""

    sent: Sequence[Sent]
    stored: Sequence[Stored]
    runs: Sequence[Run]
    calls: Sequence[ProviderCall]
    events: Sequence[Seen]
    dead_letters: Sequence[Seen]
    probe_ms: Sequence[float]
    probe_errors: int = 0
