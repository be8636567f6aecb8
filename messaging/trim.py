"""Job topics keep a record until it is done, however long that takes, so what is done is deleted here."""

from collections.abc import Iterable

import structlog

from messaging.admin import admin_client, delete_records
from messaging.entries import Partition
from messaging.errors import MessagingError

log = structlog.get_logger(__name__)


class Trim:
    """Deletes, of a job topic and its retry topic, the records below what the one consumer has committed."""

    def __init__(self, bootstrap: str) -> None:
        self._client = admin_client(bootstrap)
        self._below: dict[tuple[str, int], int] = {}

    async def run(self, partitions: Iterable[Partition]) -> None:
        """One pass over our partitions; skips those with nothing new. A failure is left to the next pass."""
        below = {(p.topic, p.number): p.offsets.stored for p in partitions if p.offsets.stored}
        changed = {place: offset for place, offset in below.items() if self._below.get(place) != offset}
        try:
            await delete_records(self._client, changed)
        except MessagingError as error:
            log.warning("trim.failed", error=str(error))
            return
        self._below.update(changed)
