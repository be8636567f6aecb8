"""Claimed timers of the gateway: what nobody needs any more is cleared away, by one process at a time."""

from collections.abc import Mapping
from functools import partial

import structlog

from messaging.database import Connection
from messaging.timers import Work
from services.gateway.store import worker as store

HOUR = 3600.0
DAY = 24 * HOUR
BATCH = 1000
"""Letters cleared in one run, and so in one transaction: each may be a megabyte."""

log = structlog.get_logger(__name__)


def timers(letter_retention_days: float) -> Mapping[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""
    return {"gateway.clean_letters": (HOUR, partial(_clean_letters, letter_retention_days * DAY))}


async def _clean_letters(keep_seconds: float, conn: Connection) -> bool:
    """Letters that were sent back or discarded that long ago. Open ones wait for a person, however long."""
    cleared = await store.clear_resolved(conn, keep_seconds, BATCH)
    if cleared:
        log.info("letters.cleared", count=cleared)
    return cleared == BATCH
