"""Claimed timers of the notifications service: what is old is cleared away."""

from collections.abc import Mapping
from functools import partial

from messaging import upkeep
from messaging.database import Connection
from messaging.timers import Work
from messaging.upkeep import DAY, HOUR
from services.notifications.settings import NotificationsSettings
from services.notifications.store import inbox

BATCH = 1000
"""Notifications dropped in one run, and so in one transaction: reads and deliveries go with each."""


def timers(settings: NotificationsSettings) -> Mapping[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""
    drop_old = partial(_drop_old, settings.notification_retention_days * DAY)
    return {**upkeep.timers(settings), "notifications.drop_old": (HOUR, drop_old)}


async def _drop_old(keep_seconds: float, conn: Connection) -> bool:
    return await inbox.drop_old(conn, keep_seconds, BATCH) == BATCH
