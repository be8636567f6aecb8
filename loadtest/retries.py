"""What failures cost: the waits before retries, and what a provider's "wait" costs nobody. Pure, from the records."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from loadtest.evidence import Ledger
from loadtest.records import Run
from messaging.policy import Backoff
from messaging.retry import longest_wait

MOMENT = 0.05
"""Seconds in which an answer may be on its way from the provider to the scheduler."""

CONFIDENCE = 1.95
"""Kolmogorov-Smirnov: of a thousand sets of n fully jittered waits, one exceeds a distance of 1.95 / sqrt(n)."""

THROTTLED = 429


def figures(ledger: Ledger, backoff: Backoff, retry_after: float) -> Mapping[str, Any]:
    """The section `retries` of the report.

    jitter_distance   the largest gap between the waits' shares of their upper ends and a uniform spread
    charged_waits     runs that the provider told to wait and that cost an attempt all the same
    early_starts      starts of any job while the provider's Retry-After of `retry_after` seconds ran
    dead_attempts     how many attempts each document had that died of failures which may pass: fewest and most
    """
    shares = wait_shares(ledger.runs, backoff)
    given_back = [pair for own in ledger.runs.values() for pair in pairwise(own) if pair[0].outcome == "released"]
    attempts = [
        tried
        for document, tried in ledger.dead_attempts().items()
        if document in ledger.sent and not ledger.sent[document].broken
    ]
    return {
        "retried_runs": sum(run.outcome == "retry" for run in ledger.evidence.runs),
        "waits": len(shares),
        "jitter_distance": distance_to_uniform(shares),
        "jitter_limit": round(CONFIDENCE / len(shares) ** 0.5, 4) if shares else None,
        "uncharged_runs": len(given_back),
        "charged_waits": sum(later.attempt != run.attempt for run, later in given_back),
        "early_starts": early_starts(ledger, retry_after),
        "dead_attempts": {"fewest": min(attempts, default=None), "most": max(attempts, default=None)},
    }


def wait_shares(runs: Mapping[str, Sequence[Run]], backoff: Backoff) -> list[float]:
    """Each wait before a retry over the longest that the backoff allows there: from 0 to 1."""
    return [
        max(0.0, later.ready_at - run.finished_at) / longest_wait(run.attempt, backoff)
        for own in runs.values()
        for run, later in pairwise(own)
        if run.outcome == "retry"
    ]


def distance_to_uniform(shares: Sequence[float]) -> float | None:
    """The Kolmogorov-Smirnov distance of these values from the uniform spread over 0 to 1."""
    if not shares:
        return None
    count = len(shares)
    gaps = (
        max(abs((rank + 1) / count - min(share, 1.0)), abs(min(share, 1.0) - rank / count))
        for rank, share in enumerate(sorted(shares))
    )
    return round(max(gaps), 4)


def early_starts(ledger: Ledger, retry_after: float) -> int:
    """Starts after the scheduler had heard of a 429 and before the wait it named was over.

    Only a document's first 429 holds everybody: when others passed since, the next is for that document alone.
    """
    starts = sorted(run.started_at for run in ledger.evidence.runs)
    first = (
        min((c.finished_at for c in own if c.status == THROTTLED), default=None) for own in ledger.calls.values()
    )
    told = [at for at in first if at is not None]
    return sum(
        max(0, bisect_left(starts, at + retry_after - MOMENT) - bisect_left(starts, at + MOMENT)) for at in told
    )
