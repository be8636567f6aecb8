"""Claimed timers of the documents service: what is left over is cleared away, by one process at a time."""

from collections.abc import Mapping
from functools import partial

import structlog

from messaging import upkeep
from messaging.database import Connection
from messaging.timers import Work
from messaging.upkeep import DAY, HOUR
from services.documents import store
from services.documents.settings import DocumentsSettings
from services.documents.storage import Storage

ORPHANED_AFTER_SECONDS = HOUR
"""How long a file may wait for its row: far longer than any request lives."""
_BATCH = 1000
_FILES_AT_ONCE = 100
"""Files removed between two statements: Postgres ends a transaction that stands still (`messaging/migrate.py`)."""

log = structlog.get_logger(__name__)


def timers(settings: DocumentsSettings, storage: Storage) -> Mapping[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""

    async def remove_orphans(conn: Connection) -> None:
        await _remove_orphans(conn, storage)

    return {
        **upkeep.timers(settings),
        "documents.forget_files": (HOUR, partial(_forget_files, settings.file_retention_days * DAY)),
        "documents.remove_orphans": (HOUR, remove_orphans),
    }


async def _forget_files(keep_seconds: float, conn: Connection) -> bool:
    """Only the rows: the files are orphans then, so a crash between the two leaves nothing that is not cleared."""
    forgotten = await store.forget_files(conn, keep_seconds, _BATCH)
    if forgotten:
        log.info("storage.files_forgotten", documents=forgotten)
    return forgotten == _BATCH


async def _remove_orphans(conn: Connection, storage: Storage) -> None:
    """Files that no document names: their request died between storing them and writing the row, or their time is
    over, or their sender was erased."""
    keys = await storage.older_than(ORPHANED_AFTER_SECONDS)
    for first in range(0, len(keys), _FILES_AT_ONCE):
        batch = keys[first : first + _FILES_AT_ONCE]
        orphans = set(batch) - await store.known_keys(conn, batch)
        for key in orphans:
            await storage.remove(key)
            log.info("storage.orphan_removed", storage_key=key)
