"""Headers of our own that a record carries on its way aside: to a retry topic or to the dead letters.

The original key, value and headers stay byte for byte; ours are replaced at each hop, never appended, so a record
does not grow with its trips. What arrives in these headers is untrusted: anything malformed counts as absent.
"""

import time
from collections.abc import Sequence

from messaging.message import RawHeaders, header_pairs, header_text, headers_to_dict

DUE = "workbot_due_ms"
FAILURES = "workbot_failures"
GENERATION = "workbot_generation"
ORIGIN = "workbot_origin"
DEAD_CONSUMER = "workbot_dead_consumer"
DEAD_REASON = "workbot_dead_reason"
DEAD_ERROR = "workbot_dead_error"
DEAD_ATTEMPTS = "workbot_dead_attempts"
DEAD_AT = "workbot_dead_at_ms"

OURS = frozenset({DUE, FAILURES, GENERATION, ORIGIN, DEAD_CONSUMER, DEAD_REASON, DEAD_ERROR, DEAD_ATTEMPTS, DEAD_AT})

MAX_ORIGIN = 300
"""Longest origin, in characters, that is used: more than any topic's name with its numbers."""


def original_headers(headers: RawHeaders) -> list[tuple[str, bytes | None]]:
    """The headers the record was first written with."""
    return [(name, value) for name, value in header_pairs(headers) if name not in OURS]


def retry_headers(
    headers: RawHeaders, *, origin: str, due_at: float, failures: int, generation: int
) -> list[tuple[str, bytes | None]]:
    """Headers for the retry topic. `due_at` is Unix time in seconds."""
    return [
        *original_headers(headers),
        (ORIGIN, origin.encode()),
        (DUE, str(int(due_at * 1000)).encode()),
        (FAILURES, str(failures).encode()),
        (GENERATION, _generation(generation)),
    ]


def sent_back_headers(
    original: Sequence[tuple[str, bytes | None]], *, origin: str, generation: int
) -> list[tuple[str, bytes | None]]:
    """Headers for the retry topic of a dead letter that is sent back: due at once, its attempts counted anew.

    `original` is what `original_headers` gave of the dead letter, `generation` one more than that had.
    """
    return [*original, (ORIGIN, origin.encode()), (GENERATION, _generation(generation))]


def dead_headers(
    headers: RawHeaders, *, origin: str, consumer: str, reason: str, error: str, attempts: int, generation: int
) -> list[tuple[str, bytes | None]]:
    """Headers for the dead letters: why, from where, by whom, after how many attempts."""
    return [
        *original_headers(headers),
        (ORIGIN, origin.encode()),
        (GENERATION, _generation(generation)),
        (DEAD_CONSUMER, consumer.encode()),
        (DEAD_REASON, reason.encode()),
        (DEAD_ERROR, error.encode("utf-8", "replace")),
        (DEAD_ATTEMPTS, str(attempts).encode()),
        (DEAD_AT, str(int(time.time() * 1000)).encode()),
    ]


class Hop:
    """What a record from a retry topic says about its trip so far; defaults when it says nothing usable."""

    __slots__ = ("due_at", "failures", "generation", "origin")

    def __init__(self, headers: RawHeaders) -> None:
        ours = headers_to_dict(headers)
        self.due_at = _number(ours.get(DUE)) / 1000
        self.failures = min(_number(ours.get(FAILURES)), 1_000_000)
        self.generation = min(_number(ours.get(GENERATION)), 1_000_000)
        origin = header_text(ours, ORIGIN)
        self.origin = origin if origin and len(origin) <= MAX_ORIGIN and "\0" not in origin else None


class Death:
    """What a dead letter says of its end; None for what it says nothing usable about.

    `at` is Unix time in seconds. The texts are as sent, of any length.
    """

    __slots__ = ("at", "attempts", "error", "reason")

    def __init__(self, headers: RawHeaders) -> None:
        ours = headers_to_dict(headers)
        self.reason = header_text(ours, DEAD_REASON)
        self.error = header_text(ours, DEAD_ERROR)
        self.attempts = min(_number(ours.get(DEAD_ATTEMPTS)), 1_000_000) or None
        self.at = _number(ours.get(DEAD_AT)) / 1000 or None


def _generation(generation: int) -> bytes:
    # Of one width, so that a record sent back ten times is as large as one never sent back.
    return b"%04d" % generation


def _number(raw: bytes | None) -> int:
    return int(raw) if raw is not None and raw.isdigit() and len(raw) < 16 else 0


FIRST_HOP = Hop(None)
"""A record that was never set aside."""
