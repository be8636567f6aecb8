"""What becomes of an event that could not be counted, and which subscriptions stand still, of what."""

import random
import time
from collections.abc import Sequence

import structlog

from messaging import retry, telemetry
from messaging.breaker import Fuse
from messaging.errors import LostAttempts, MessagingError, Undecodable, UnknownEvent
from messaging.judge import FUSE
from messaging.policy import Subscription
from services.analytics.record import Record

log = structlog.get_logger(__name__)

_EXEMPT = (Undecodable, UnknownEvent, LostAttempts)


class Holding:
    """Decides, and tells by CONSUMER_PAUSED who stands still."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self._held: dict[str, str] = {}
        self._fuses = {sub.name: Fuse(sub.dead_letter_share) for sub in subscriptions}
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret

    def decide(self, record: Record, sub: Subscription, error: MessagingError, tries: int) -> retry.Decision:
        """What to do after so many tries; a pause when too many would die of one reason."""
        decision = retry.decide(error, tries, sub.backoff, self._rng)
        if isinstance(decision, retry.SetAside) and not isinstance(error, _EXEMPT):
            fuse, now = self._fuses[sub.name], time.monotonic()
            if fuse.holds(decision.reason, record.owner, str(record.place), now):
                place = "/".join(map(str, record.place))
                log.error("fuse.blown", consumer=sub.name, reason=decision.reason, job=place, error=decision.message)
                return retry.Pause(FUSE)
        return decision

    def hold(self, sub: Subscription, resource: str) -> None:
        """It stands still because of that."""
        self._held[sub.name] = resource
        telemetry.CONSUMER_PAUSED.labels(sub.name).set(1)

    def passed(self, sub: Subscription) -> None:
        """An event was counted: it goes on, and so does its fuse."""
        self._fuses[sub.name].passed()
        self._release(sub)

    def set_aside(self, sub: Subscription) -> None:
        """An event has got its letter: it goes on, unless its fuse has blown."""
        if self._held.get(sub.name) != FUSE:
            self._release(sub)

    def _release(self, sub: Subscription) -> None:
        if self._held.pop(sub.name, None) is not None:
            telemetry.CONSUMER_PAUSED.labels(sub.name).set(0)
