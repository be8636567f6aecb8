"""Claimed timers of the gateway: what nobody needs any more is cleared away, by one process at a time."""

from collections.abc import Mapping
from functools import partial

import structlog

from messaging.database import Connection
from messaging.timers import Work
from services.gateway import store

HOUR = 3600.0
DAY = 24 * HOUR
BATCH = 1000
"""Letters deleted in one statement: each may be a megabyte."""

log = structlog.get_logger(__name__)


def timers(letter_retention_days: float) -> Mapping[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""
    return {"gateway.clean_letters": (HOUR, partial(_clean_letters, letter_retention_days * DAY))}


async def _clean_letters(keep_seconds: float, conn: Connection) -> None:
    """Letters that were sent back or discarded that long ago. Open ones wait for a person, however long."""
    deleted = 0
    while batch := await store.delete_resolved(conn, keep_seconds, BATCH):
        deleted += batch
    if deleted:
        log.info("letters.cleaned", count=deleted)
