"""Pure: what becomes of a failure. Full jitter over an exponential (Amazon Builders' Library, "Timeouts, retries and
backoff with jitter"): the wait before attempt n+1 is uniform between 0 and min(cap, base x 2^(n-1)) seconds.
"""

import asyncio
import random
import unicodedata
from dataclasses import dataclass

from messaging.errors import Deferred, MessagingError, NotRetryable, Outage, Throttled
from messaging.gate import LONGEST_PAUSE
from messaging.policy import Backoff

LONGEST_MESSAGE = 500
"""Characters of an error that are kept: it travels in a header and is shown to people."""

EXHAUSTED = "attempts_exhausted"

PROVIDER = "provider"
"""What everybody waits for when the other side is away or asks to wait."""


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again after so many seconds; the attempt counts."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SetAside:
    """A dead letter: `reason` for machines, `message` for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The provider named a time, in seconds: everybody waits, nothing is charged."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """`resource` is away: everybody waits, at most `longest` seconds between two tries; nothing is charged."""

    resource: str
    longest: float = LONGEST_PAUSE


@dataclass(frozen=True, slots=True)
class Later:
    """This job alone waits, in seconds; nothing is charged."""

    seconds: float


Decision = RetryIn | SetAside | Wait | Pause | Later


def decide(error: BaseException, attempt: int, backoff: Backoff, rng: random.Random) -> Decision:
    """What to do after attempt number `attempt` (1 for the first) ended with `error`.

    An error outside the tree counts as one that may pass. Raises TypeError for a cancellation: that is no failure.
    """
    if isinstance(error, asyncio.CancelledError):
        raise TypeError("a cancelled run did not fail; it is given back")
    match error:
        case NotRetryable(reason=reason):
            return SetAside(reason, describe(error))
        case Throttled(retry_after=seconds):
            return Wait(max(0.0, seconds))
        case Outage(resource=resource):
            return Pause(resource)
        case _ if attempt >= backoff.attempts:
            return SetAside(EXHAUSTED, describe(error))
        case Deferred(retry_after=seconds) if seconds > 0:
            # Not all at the same moment, for whoever asked them all to wait as long.
            return RetryIn(min(seconds * rng.uniform(1.0, 1.1), backoff.cap))
        case _:
            return RetryIn(rng.uniform(0.0, longest_wait(attempt, backoff)))


def longest_wait(attempt: int, backoff: Backoff) -> float:
    """The upper end of the jitter after this attempt, in seconds."""
    # The exponent is bounded so that a huge attempt number cannot overflow a float.
    return min(backoff.cap, backoff.base * 2.0 ** min(attempt - 1, 60))


def describe(error: BaseException) -> str:
    """An error in one bounded line without control characters. Errors from outside the tree say their type."""
    # Cut before it is looked at: some errors quote all they were given.
    start = str(error)[: 4 * LONGEST_MESSAGE]
    text = " ".join("".join(c for c in start if c.isspace() or unicodedata.category(c)[0] != "C").split())
    if not text:
        text = type(error).__name__
    elif not isinstance(error, MessagingError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
