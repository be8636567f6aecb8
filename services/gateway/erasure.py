"""All that the gateway keeps of one sender, counted and erased: requests, dead letters, events about them."""

from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.message import Key
from services.gateway.store.erasure import HELD


async def count(conn: Connection, owner: Key) -> dict[str, int]:
    """How much there is, by kind."""
    return await erasure.count(conn, HELD, owner)


async def erase(conn: Connection, owner: Key, told: Told) -> dict[str, int]:
    """Erase it; how much there was, by kind. As the tables' owner, on a connection that is in no transaction.

    A letter that the projector comes to afterwards, of something that happened before, is stored without its content.
    """
    await erasure.mark(conn, owner)
    return await erasure.erase(conn, HELD, owner, told)
