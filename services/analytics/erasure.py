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

mark = erasure.mark


class Pending(MessagingError):
    """Nobody has taken the counts out yet."""


async def count(conn: Connection, owner: Key, until: datetime | None = None) -> dict[str, int]:
    """Nothing that can be seen from outside of the process."""
    return {}


async def ask(conn: Connection, owner: Key) -> None:
    """Have the counts taken out, as the tables' owner: within a second they go. For after the mark, for what is from
    before it must not be counted again; and no later than LEAD before its moment, for who counts does not look for
    longer than that, and what it counted from after the moment would go as well.
    """
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
