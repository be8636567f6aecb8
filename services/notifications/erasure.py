"""All that this service keeps of one sender, counted and erased: notifications, their deliveries, subscriptions."""

from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.message import Key
from services.notifications.store.erasure import HELD


async def count(conn: Connection, owner: Key) -> dict[str, int]:
    """How much there is, by kind."""
    return await erasure.count(conn, HELD, owner)


async def erase(conn: Connection, owner: Key, told: Told) -> dict[str, int]:
    """Erase it; how much there was, by kind. As the tables' owner, on a connection that is in no transaction.

    An event that is read afterwards and happened before tells nobody. A delivery under way is not called back.
    """
    await erasure.mark(conn, owner)
    return await erasure.erase(conn, HELD, owner, told)
