"""All that this service keeps of one sender, counted and erased: notifications, their deliveries, subscriptions."""

from datetime import datetime

from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.message import Key
from services.notifications.store.erasure import HELD

mark = erasure.mark


async def count(conn: Connection, owner: Key, until: datetime | None = None) -> dict[str, int]:
    """How much there is (or was by then), by kind."""
    return await erasure.count(conn, HELD, owner, until)


async def erase(conn: Connection, owner: Key, until: datetime, told: Told) -> dict[str, int]:
    """Erase what there was by then, a marked moment that has passed; how much that was, by kind. As the tables'
    owner, on a connection that is in no transaction.

    An event that is read afterwards and happened before tells nobody. A delivery under way is not called back.
    """
    await erasure.await_writers(conn, ("outbox", "subscriptions"))
    return await erasure.erase(conn, HELD, owner, until, told)
