"""Buckets past their time go from Kafka, from this disk and from the cube."""

import time

import structlog

from services.analytics import counting
from services.analytics.counting import Keep, Value
from services.analytics.cube import Cube
from services.analytics.removing import take_out
from services.analytics.tables import Counts

log = structlog.get_logger(__name__)


async def tidy(table: Counts, cube: Cube, keep: Keep) -> None:
    """Take them all out; returns when Kafka knows."""
    now = time.time()

    def outdated(key: str, value: Value) -> bool | None:
        return counting.outdated(key, value, now, keep) or None

    dropped = await take_out(table, cube, outdated)
    if dropped:
        log.info("analytics.tidied", keys=dropped.total())
