"""Buckets past their time go from this disk, from Kafka and from the cube."""

import asyncio
import time

import structlog

from services.analytics import counting
from services.analytics.counting import Keep
from services.analytics.cube import Cube
from services.analytics.erasing import AT_ONCE, on_kafka
from services.analytics.tables import Counts

log = structlog.get_logger(__name__)


async def tidy(table: Counts, cube: Cube, keep: Keep) -> None:
    """Take them all out; returns when Kafka knows."""
    now, dropped = time.time(), 0
    sent: list[asyncio.Future[object]] = []
    async for key, value in table.everything():
        if counting.outdated(key, value, now, keep) and (before := table.look(key)) is not None:
            sent.append(table.write(key, None))
            cube.apply(key, before, None)
            dropped += 1
            if len(sent) == AT_ONCE:
                await on_kafka(sent)
    await on_kafka(sent)
    if dropped:
        log.info("analytics.tidied", keys=dropped)
