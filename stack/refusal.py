"""What a service said when it ended for a reason that only a person can remove."""

import json
import os
from pathlib import Path

from messaging.errors import MessagingError

EVENT = "process.misconfigured"
"""The log event that carries the reason; what is refused before there is a log comes as plain lines."""

REMEDY = "correct that, then `workbot down` and `workbot up`"

_MAX_BYTES = 64 * 1024
_LINES = 3


class Refused(MessagingError):
    """A child says that starting it again is of no use."""


def said(log: Path, begin: int) -> str:
    """The reason in the log from byte `begin` on, without the events around it."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        # Shorter than it was: the log has been put aside and begun anew.
        file.seek(max(begin if begin <= size else 0, size - _MAX_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    events = [event for line in lines if (event := _event(line)) is not None]
    reasons = [str(event.get("error", "")) for event in events if event.get("event") == EVENT]
    if reasons:
        return reasons[-1].rstrip(".")
    plain = [line.strip() for line in lines if line.strip() and _event(line) is None]
    return " ".join(plain[-_LINES:]).rstrip(".") or "it did not say why"


def _event(line: str) -> dict[str, object] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
