"""Pure: the records that wait, a lane per key, and which of them are held in memory.

A sender may have a million records in front of another's one. So the consumer reads past them all: each lane keeps
the payloads of its next few records and of the rest only the offsets (8 bytes a record), to be read again when their
turn comes. The window is per lane and shrinks under one byte budget for all, so no total bound lets one sender's
backlog hide the others.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from messaging.message import Key, RawHeaders
from messaging.offsets import PartitionOffsets

NOBODY = Key("-", "-")
"""Whose slots a record without a readable key uses; it can only become a dead letter."""


class RawRecord(Protocol):
    """What a lane needs of a Kafka message."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> RawHeaders: ...
    def offset(self) -> int | None: ...


class Partition:
    """One partition for as long as it is assigned. `active` ends with the assignment: late results see it."""

    __slots__ = ("active", "is_retry", "number", "offsets", "topic")

    def __init__(self, topic: str, number: int, *, is_retry: bool) -> None:
        self.topic = topic
        self.number = number
        self.is_retry = is_retry
        self.active = True
        self.offsets = PartitionOffsets()


class Entry:
    """One record on its way through the scheduler. `ready_at` is Unix time; `due`: its retry time has passed."""

    __slots__ = ("due", "key", "offset", "partition", "ready_at", "record", "size")

    def __init__(self, key: Key, partition: Partition, offset: int, record: RawRecord, size: int, ready_at: float):
        self.key = key
        self.partition = partition
        self.offset = offset
        self.record = record
        self.size = size
        self.ready_at = ready_at
        self.due = False


class _Lane:
    __slots__ = ("loading", "parked", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Entry] = deque()
        self.parked: dict[Partition, array[int]] = {}
        self.loading: dict[Partition, int] = {}

    def empty(self) -> bool:
        return not (self.waiting or self.parked or self.loading)


class Lanes:
    """Waiting records by key. `window` is the most payloads a lane holds, `budget` the bytes of all of them."""

    def __init__(self, *, window: int = 200, budget: int = 64 * 1024 * 1024) -> None:
        self._lanes: dict[Key, _Lane] = {}
        self._window = window
        self._low = window // 4
        self._budget = budget
        self._hungry: dict[Key, None] = {}
        self.payload_bytes = 0
        self.parked = 0

    def window(self) -> int:
        """Payloads a lane may hold now: the full window up to half the budget, then linearly down to none."""
        spare = 2 * (self._budget - self.payload_bytes) / self._budget
        return int(self._window * min(1.0, max(0.0, spare)))

    def add(self, entry: Entry) -> bool:
        """Queue a record behind its lane's others. True: it waits with its payload; False: parked."""
        lane = self._lane(entry.key)
        if lane.parked or lane.loading or len(lane.waiting) >= self.window():
            offsets = lane.parked.get(entry.partition)
            if offsets is None:
                offsets = lane.parked[entry.partition] = array("q")
            offsets.append(entry.offset)
            self.parked += 1
            self._note_hunger(entry.key, lane)
            return False
        lane.waiting.append(entry)
        self.payload_bytes += entry.size
        return True

    def put_front(self, entry: Entry) -> None:
        """Queue a record before its lane's others: it was taken and could not run, or its retry is due."""
        self._lane(entry.key).waiting.appendleft(entry)
        self.payload_bytes += entry.size

    def take(self, key: Key) -> Entry:
        """The first waiting record of a key. Raises LookupError when there is none: the caller's count is off."""
        lane = self._lanes[key]
        entry = lane.waiting.popleft()
        self.payload_bytes -= entry.size
        self._note_hunger(key, lane)
        if lane.empty():
            del self._lanes[key]
        return entry

    @property
    def hungry(self) -> bool:
        """Whether some lane runs low and has parked records."""
        return bool(self._hungry)

    def wanted(self, most: int = 2000) -> dict[Partition, dict[int, Key]]:
        """Whose offsets to read again now, about `most` in all. They count as being loaded from here on."""
        wanted: dict[Partition, dict[int, Key]] = {}
        room = self.window()
        for key in list(self._hungry):
            if most <= 0:
                break
            lane = self._lanes[key]
            count = min(room - len(lane.waiting), most)
            if count <= 0:
                continue
            del self._hungry[key]
            most -= count
            for partition in list(lane.parked):
                offsets = lane.parked[partition]
                chosen = offsets[:count]
                del offsets[: len(chosen)]
                if not offsets:
                    del lane.parked[partition]
                wanted.setdefault(partition, {}).update(dict.fromkeys(chosen, key))
                lane.loading[partition] = len(chosen)
                count -= len(chosen)
                if count <= 0:
                    break
        return wanted

    def loaded(self, entry: Entry) -> bool:
        """A record asked for by `wanted` is back. False: its partition was revoked meanwhile."""
        if not entry.partition.active:
            return False
        lane = self._lanes[entry.key]
        self._one_loaded(entry.key, lane, entry.partition)
        lane.waiting.append(entry)
        self.payload_bytes += entry.size
        return True

    def gone(self, key: Key, partition: Partition) -> None:
        """A wanted record does not exist any more."""
        if partition.active:
            lane = self._lanes[key]
            self._one_loaded(key, lane, partition)
            if lane.empty():
                del self._lanes[key]

    def parked_by_key(self) -> Iterator[tuple[Key, int]]:
        """How many records of each key are known by their offset only. Not to be changed meanwhile."""
        for key, lane in self._lanes.items():
            if lane.parked or lane.loading:
                yield key, sum(map(len, lane.parked.values())) + sum(lane.loading.values())

    def drop_inactive(self) -> dict[Key, int]:
        """Forget the records of revoked partitions; returns how many waiting ones each key lost."""
        lost: dict[Key, int] = {}
        for key, lane in list(self._lanes.items()):
            kept: deque[Entry] = deque()
            for entry in lane.waiting:
                if entry.partition.active:
                    kept.append(entry)
                else:
                    self.payload_bytes -= entry.size
                    lost[key] = lost.get(key, 0) + 1
            lane.waiting = kept
            for partition in [p for p in lane.parked if not p.active]:
                self.parked -= len(lane.parked.pop(partition))
            for partition in [p for p in lane.loading if not p.active]:
                self.parked -= lane.loading.pop(partition)
            if not lane.parked:
                self._hungry.pop(key, None)
            if lane.empty():
                del self._lanes[key]
        return lost

    def _lane(self, key: Key) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        return lane

    def _one_loaded(self, key: Key, lane: _Lane, partition: Partition) -> None:
        self.parked -= 1
        lane.loading[partition] -= 1
        if not lane.loading[partition]:
            del lane.loading[partition]
            self._note_hunger(key, lane)

    def _note_hunger(self, key: Key, lane: _Lane) -> None:
        if lane.parked and not lane.loading and len(lane.waiting) <= self._low:
            self._hungry[key] = None
