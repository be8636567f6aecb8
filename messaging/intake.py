"""What a consumer reads: records become entries of the scheduler, on arrival and when parked ones are read again."""

import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog
from confluent_kafka import Message

from messaging.deadletter import Hop
from messaging.entries import NOBODY, Entry, Partition
from messaging.kept import Kept
from messaging.message import Key
from messaging.reread import Rereader
from messaging.scheduler import Scheduler

log = structlog.get_logger(__name__)

ENTRY_BYTES = 800
"""What a waiting record takes beside its key, headers and value, as measured (CPython 3.11, eight headers)."""

KEYS_KEPT = 20_000
"""Keys whose parsed form is remembered: a busy sender's is the same in each of its records."""


class Intake:
    """Feeds one scheduler. `longest_wait`: no retry waits longer than so many seconds, whatever its header says."""

    def __init__(
        self,
        scheduler: Scheduler,
        rereader: Rereader,
        longest_wait: float,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._scheduler = scheduler
        self._rereader = rereader
        self._longest_wait = longest_wait
        self._spawn = spawn
        self._keys: dict[bytes | None, Key] = {}

    def arrived(self, records: Iterable[Message], partitions: dict[tuple[str, int], Partition]) -> None:
        """Queue a batch; a record of a partition that is not ours any more is left to its new owner."""
        now = time.time()
        admit, park = self._scheduler.admit, self._scheduler.lanes.add_bare
        topic = number = partition = None
        for record in records:
            if record.partition() != number or record.topic() != topic:
                topic, number = record.topic(), record.partition()
                partition = partitions.get((topic, number))  # type: ignore[arg-type]
            offset = record.offset()
            if partition is None or offset is None or not partition.offsets.seen(offset):
                continue
            key = self._key(record.key())
            if partition.is_retry:
                # A forged time must not park a record for ever.
                entry = _entry(key, partition, offset, Kept(record), now)
                due_in = min(Hop(entry.record.headers()).due_at - now, self._longest_wait)
                self._scheduler.arrive(entry, due_in)
            elif not park(key, partition, offset):  # most of a backlog ends there, so nothing more is asked of it
                admit(_entry(key, partition, offset, Kept(record), now))
        self._scheduler.dispatch()

    def read_parked(self) -> None:
        """Read again what lanes that run low have parked."""
        for partition, offsets in self._scheduler.lanes.wanted().items():
            self._spawn(self._reread(partition, offsets))

    async def _reread(self, partition: Partition, wanted: dict[int, Key]) -> None:
        found = await self._rereader.fetch(partition.topic, partition.number, sorted(wanted))
        now = time.time()
        for offset, key in sorted(wanted.items()):
            record = found.get(offset)
            if record is not None:
                self._scheduler.loaded(_entry(key, partition, offset, record, now))
                continue
            self._scheduler.lanes.gone(key, partition)
            partition.offsets.finished(offset)
            log.error("record.gone", topic=partition.topic, partition=partition.number, offset=offset)
        self._scheduler.dispatch()

    def _key(self, raw: bytes | None) -> Key:
        known = self._keys.get(raw)
        if known is not None:
            return known
        try:
            key = Key.parse(raw)
        except ValueError:
            key = NOBODY
        if len(self._keys) >= KEYS_KEPT:
            self._keys.clear()
        self._keys[raw] = key
        return key


def _entry(key: Key, partition: Partition, offset: int, record: Kept, now: float) -> Entry:
    entry = Entry(key, partition, offset, record, ENTRY_BYTES + record.size, now)
    entry.due = partition.is_retry
    return entry
