"""Claimed timers of the documents service: what is left over is cleared away, by one process at a time."""

from collections.abc import Mapping

import structlog

from messaging import ledger, outbox
from messaging.database import Connection
from messaging.timers import Work
from services.documents import store
from services.documents.storage import Storage

HOUR = 3600.0
ORPHANED_AFTER_SECONDS = HOUR
"""How long a file may wait for its row: far longer than any request lives."""
LEDGER_SECONDS = 2 * outbox.REPLAY_WINDOW.total_seconds()
"""How long the ledger remembers a settled job: past any time at which its record could come again."""
LEDGER_BATCH = 10_000
"""Rows of the ledger dropped in one run, and so in one transaction."""
_BATCH = 1000

log = structlog.get_logger(__name__)


def timers(storage: Storage) -> Mapping[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""

    async def remove_orphans(conn: Connection) -> None:
        await _remove_orphans(conn, storage)

    return {
        "documents.remove_orphans": (HOUR, remove_orphans),
        "outbox.maintain": (HOUR, _maintain_outbox),
        "ledger.clean": (HOUR, _clean_ledger),
    }


async def _remove_orphans(conn: Connection, storage: Storage) -> None:
    """Files that no document names: their request died between storing them and writing the row."""
    keys = await storage.older_than(ORPHANED_AFTER_SECONDS)
    for first in range(0, len(keys), _BATCH):
        batch = keys[first : first + _BATCH]
        orphans = set(batch) - await store.known_keys(conn, batch)
        for key in orphans:
            await storage.remove(key)
            log.info("storage.orphan_removed", storage_key=key)


async def _maintain_outbox(conn: Connection) -> None:
    await outbox.maintain(conn)


async def _clean_ledger(conn: Connection) -> bool:
    return await ledger.clean(conn, LEDGER_SECONDS, LEDGER_BATCH) == LEDGER_BATCH
