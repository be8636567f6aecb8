"""Claimed timers of the gateway: what nobody needs any more is cleared away, by one process at a time."""

from collections.abc import Mapping
from functools import partial

import structlog

from messaging import upkeep
from messaging.database import Connection
from messaging.timers import Work
from messaging.upkeep import DAY, HOUR
from schemas.retention import DEAD_LETTERS_GONE_DAYS
from services.gateway.settings import GatewaySettings
from services.gateway.store import worker as store

BATCH = 1000
"""Letters cleared in one run, and so in one transaction: each may be a megabyte."""

log = structlog.get_logger(__name__)


def timers(settings: GatewaySettings) -> Mapping[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""
    clean_letters = partial(_clean_letters, settings.letter_retention_days * DAY)
    return {
        **upkeep.timers(settings),
        "gateway.clean_letters": (HOUR, clean_letters),
        "gateway.drop_letters": (HOUR, _drop_letters),
    }


async def _drop_letters(conn: Connection) -> bool:
    """What was cleared, once no topic can bring it again."""
    return await store.drop_forgotten(conn, DEAD_LETTERS_GONE_DAYS * DAY, BATCH) == BATCH


async def _clean_letters(keep_seconds: float, conn: Connection) -> bool:
    """Letters that were sent back or discarded that long ago. Open ones wait for a person, however long."""
    cleared = await store.clear_resolved(conn, keep_seconds, BATCH)
    if cleared:
        log.info("letters.cleared", count=cleared)
    return cleared == BATCH
