"""All that this service keeps of one sender, counted and erased: documents, their files, events about them."""

from datetime import datetime

from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.message import Key
from services.documents import store
from services.documents.storage import Storage

DOCUMENTS = "documents"
FILES = "stored files"

mark = erasure.mark

_BATCH = 1000
"""Documents deleted in one transaction, whose files are then removed one by one."""


async def count(conn: Connection, owner: Key, until: datetime | None = None) -> dict[str, int]:
    """How much there is (or was by then), by kind."""
    documents, files = await store.count(conn, owner, until)
    return {DOCUMENTS: documents, FILES: files, **await erasure.count(conn, erasure.OURS, owner, until)}


async def erase(conn: Connection, storage: Storage, owner: Key, until: datetime, told: Told) -> dict[str, int]:
    """Erase what there was by then, a marked moment that has passed; how much that was, by kind. As the tables'
    owner, on a connection that is in no transaction.

    The rows first: a file that is left by a crash belongs to no document, and the timer for orphans removes it. A
    reading that is under way finds its document gone and writes nothing. Raises OSError when files cannot go: as many
    as can are gone then, and the orphans' timer tries the others again.
    """
    await erasure.await_writers(conn)
    gone = {DOCUMENTS: 0, FILES: 0}
    while True:
        async with conn.transaction():
            keys = await store.erase(conn, owner, until, _BATCH)
        gone[DOCUMENTS] += len(keys)
        told(DOCUMENTS, len(keys))
        left: list[OSError] = []
        for key in keys:
            if key is not None:
                try:
                    await storage.remove(key)
                except OSError as fault:
                    left.append(fault)
                    continue
                gone[FILES] += 1
                told(FILES, 1)
        if left:
            raise left[0]
        if len(keys) < _BATCH:
            return gone | await erasure.erase(conn, erasure.OURS, owner, until, told)
