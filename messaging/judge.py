"""What a failure means: the job's own, to be tried again or set aside, or everybody's, to be waited out.

Decides at once and touches nothing but its own counts, so that starts can be held before the next job takes the slot.
What was decided is written down in `outcomes`.
"""

import random
import time

import structlog

from messaging import retry
from messaging.breaker import Breaker, Fuse
from messaging.errors import (
    Fenced,
    LostAttempts,
    Outage,
    Retryable,
    Throttled,
    Unavailable,
    Undecodable,
    UnknownEvent,
)
from messaging.policy import Backoff, Subscription
from messaging.runs import BUSY_SECONDS, Run

log = structlog.get_logger(__name__)

FUSE = "fuse"
"""What holds a consumer that stopped instead of dead-lettering everybody's jobs."""

UNAVAILABLE_PAUSE = 30.0
"""The longest pause of an open breaker, in seconds: every try costs a call that somebody may be paid for."""


OWN_WAITS = 5
"""So often a job waits alone, uncharged, for what lets the others pass; after that it is charged like any failure."""

REMEMBERED = 10_000
"""Jobs of which it is known that everybody was held for their sake."""


class Judge:
    """Judges the failed runs of one consumer on one worker."""

    def __init__(self, subscription: Subscription, seed: int | None = None) -> None:
        self._consumer = subscription.name
        self._backoff = subscription.backoff
        self._rng = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._breaker = Breaker()
        self._fuse = Fuse(subscription.dead_letter_share)
        self._passed = 0
        self._held_for: dict[str, tuple[int, int]] = {}  # by job: how often others passed all the same; passed then

    def passed(self, run: Run) -> None:
        """A run ended well: what was taken for an outage or for a fault of ours may be over."""
        if run.job is not None:
            self._passed += 1
            self._breaker.passed()
            self._fuse.passed()

    def decide(self, run: Run) -> retry.Decision:
        """What is to become of this failed run; call it once. A pause or a wait is for everybody."""
        error = run.error
        assert error is not None
        if isinstance(error, Fenced):
            return retry.RetryIn(BUSY_SECONDS)
        if isinstance(error, Throttled | Outage) and run.job is not None and (again := self._own_fault(run.id)):
            if again <= OWN_WAITS:
                return retry.Later(_own_wait(error, again, self._backoff))
            error = Retryable(str(error))
        if isinstance(error, Unavailable) and self._breaker.failed(error.resource, run.id, time.monotonic()):
            return retry.Pause(error.resource, UNAVAILABLE_PAUSE)
        decision = retry.decide(error, run.attempt, self._backoff, self._rng)
        if not isinstance(decision, retry.SetAside):
            return decision
        # What nobody can read must not hold up those behind it; a killer took its process along already.
        exempt = isinstance(error, Undecodable | UnknownEvent | LostAttempts)
        if exempt or not self._fuse.holds(decision.reason, run.entry.key, run.id, time.monotonic()):
            return decision
        log.error("fuse.blown", consumer=self._consumer, reason=decision.reason, job=run.id, error=decision.message)
        return retry.Pause(FUSE)

    def _own_fault(self, job: str) -> int:
        """How often everybody was held for this job and others passed since: one more each time, 0 for the first."""
        again, passed = self._held_for.pop(job, (0, self._passed))
        again += self._passed > passed
        if len(self._held_for) >= REMEMBERED:
            del self._held_for[next(iter(self._held_for))]
        self._held_for[job] = again, self._passed
        return again


def _own_wait(error: Throttled | Outage, again: int, backoff: Backoff) -> float:
    asked = error.retry_after if isinstance(error, Throttled) else 0.0
    return max(asked, retry.longest_wait(again, backoff))
