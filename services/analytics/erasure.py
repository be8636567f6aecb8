"""What this service keeps of one sender: counts, in tables that only the process that counts can write. So it is
asked to take them out, and waited for.
"""

import asyncio
import time
from datetime import datetime

from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.errors import MessagingError
from messaging.message import Key
from services.analytics import store

COUNTS = "keys of the tables"

LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 30.0


class Pending(MessagingError):
    """Nobody has taken the counts out yet."""


async def count(conn: Connection, owner: Key, until: datetime | None = None) -> dict[str, int]:
    """Nothing that can be seen from outside of the process."""
    return {}


async def mark(conn: Connection, owner: Key, at: datetime) -> None:
    """Have the counts taken out of what there is at that moment, as the tables' owner: with the mark in one
    transaction, for the process that counts must not learn of one without the other.
    """
    async with conn.transaction():
        await erasure.mark(conn, owner, at)
        await store.ask_to_erase(conn, erasure.digest(owner))


async def erase(conn: Connection, owner: Key, until: datetime, told: Told) -> dict[str, int]:
    """Wait until the counts are taken out; how many keys of the tables there were. An event that is read afterwards
    and happened by then is not counted.

    Raises Pending when no process has done so in PATIENCE_SECONDS; it is done all the same, when one counts again.
    """
    digest = erasure.digest(owner)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (keys := await store.keys_erased(conn, digest)) is None:
        if time.monotonic() > deadline:
            raise Pending(
                f"analytics: no process has taken the counts out within {PATIENCE_SECONDS:g} s. They go as soon as "
                "one counts (`workbot status`); run this again to see that they have."
            )
        await asyncio.sleep(LOOK_SECONDS)
    told(COUNTS, keys)
    return {COUNTS: keys}
