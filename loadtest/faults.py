"""How the simulated provider behaves: how long it thinks, and when it fails. Pure, and the same for the same seed."""

from dataclasses import dataclass
from random import Random

CALL_SHARES = {1: 0.7, 2: 0.3}
"""How a document's time is split over its calls: extracting the fields takes longer than checking them."""
REFUSAL_SECONDS = 0.05
"""A broken file, or an ordered 500 or 429, is answered after this long."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The orders. `mean` and `retry_after` are seconds, the first per document; rates are shares of calls."""

    seed: int = 33
    mean: float = 1.0
    error_rate: float = 0.0
    timeout_rate: float = 0.0
    throttle_rate: float = 0.0
    retry_after: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one call. Status 0 means that no answer comes at all."""

    status: int
    seconds: float


def document_seconds(terms: Terms, document: str) -> float:
    """The provider's time for a whole document: uniform between 0.5 and 1.5 times the mean."""
    return terms.mean * _random(terms, document, "time").uniform(0.5, 1.5)


def verdict(terms: Terms, document: str, call: int, attempt: int) -> Verdict:
    """What becomes of the `attempt`-th time (1 is the first) that this call of this document arrives."""
    drawn = _random(terms, document, f"{call}/{attempt}").random()
    for status, rate in ((500, terms.error_rate), (0, terms.timeout_rate), (429, terms.throttle_rate)):
        if drawn < rate:
            return Verdict(status, 0.0 if status == 0 else REFUSAL_SECONDS)
        drawn -= rate
    return Verdict(200, document_seconds(terms, document) * CALL_SHARES[call])


def _random(terms: Terms, document: str, purpose: str) -> Random:
    return Random(f"{terms.seed}/{document}/{purpose}")  # noqa: S311 - reproducible on purpose, guards nothing
