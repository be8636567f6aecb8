"""Pure: the records that wait, a lane per key, and which of them are held in memory.

A sender may have a million records in front of another's one. So the consumer reads past them all: each lane keeps
the payloads of its next few records and of the rest only the offsets (8 bytes a record), to be read again when their
turn comes. The window is per lane and shrinks under one byte budget for all, so no total bound lets one sender's
backlog hide the others.
"""

from array import array
from bisect import insort
from collections import deque
from collections.abc import Iterator

from messaging.entries import Entry, Partition
from messaging.message import Key
from messaging.refill import shares

FADES = 0.998
"""By so much the size of the largest record counts less with each that comes."""


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
        self._parked: dict[Partition, dict[Key, None]] = {}  # the lanes with parked records there
        self.running_low: dict[Partition, dict[Key, None]] = {}
        """Those of them that run low. Empty: nothing can be `hungry`, which costs more to ask."""
        self._loading: dict[Partition, int] = {}
        self._no_room_at = budget + 1
        self._largest = 1.0  # bytes of a record, lately: what one to be read again may take
        self.payload_bytes = 0
        self.parked = 0

    @property
    def spare_bytes(self) -> int:
        """What is left of the budget; less than 0 when records that were put back exceed it."""
        return self._budget - self.payload_bytes

    def window(self) -> int:
        """Payloads a lane may hold now: the full window up to half the budget, then linearly down to none."""
        if self.payload_bytes * 2 <= self._budget:
            return self._window
        spare = 2 * (self._budget - self.payload_bytes) / self._budget
        return int(self._window * min(1.0, max(0.0, spare)))

    def add(self, entry: Entry) -> bool:
        """Queue a record behind its lane's others. True: it waits with its payload; False: parked."""
        if self.add_bare(entry.key, entry.partition, entry.offset):
            return False
        self.add_whole(entry)
        return True

    def add_whole(self, entry: Entry) -> None:
        """Queue a record with its payload; `add_bare` was asked just now, and there is room."""
        self._lane(entry.key).waiting.append(entry)
        self._took(entry.size)

    def add_bare(self, key: Key, partition: Partition, offset: int) -> bool:
        """Queue a record behind its lane's others, by its offset alone, if that is all there is room for."""
        lane = self._lanes.get(key)
        if lane is None:
            if self.window() > 0:
                return False
            lane = self._lane(key)
        elif not (lane.parked or lane.loading) and len(lane.waiting) < self.window():
            return False
        self._park(lane, key, partition).append(offset)
        self._note_hunger(key, lane)
        return True

    def park(self, key: Key, partition: Partition, offset: int) -> None:
        """Queue a record by its offset alone: it is read again when its turn comes."""
        lane = self._lane(key)
        insort(self._park(lane, key, partition), offset)
        self._note_hunger(key, lane)

    def put_front(self, entry: Entry) -> None:
        """Queue a record before its lane's others: it was taken and could not run, or its retry is due."""
        self._lane(entry.key).waiting.appendleft(entry)
        self.payload_bytes += entry.size

    def take(self, key: Key) -> Entry:
        """The first waiting record of a key. Raises LookupError when there is none: the caller's count is off."""
        lane = self._lanes[key]
        entry = lane.waiting.popleft()
        self.payload_bytes -= entry.size
        if lane.parked:
            self._note_hunger(key, lane)
        elif not lane.waiting and not lane.loading:
            del self._lanes[key]
        return entry

    @property
    def hungry(self) -> bool:
        """Whether `wanted` would find something: some lane runs low, has parked records, and there is room."""
        if not self.running_low or self.payload_bytes >= self._no_room_at:
            return False
        return not self.running_low.keys() <= self._loading.keys()

    def wanted(self, most: int = 2000) -> dict[Partition, dict[int, Key]]:
        """Whose offsets to read again now, about `most` in all: one pass at a time over a partition (see `refill`).

        They count as being loaded from here on.
        """
        wanted: dict[Partition, dict[int, Key]] = {}
        loading = sum(self._loading.values())
        # What is under way has no size yet: each is taken to be as large as the largest lately.
        fitting = int((self._budget - self.payload_bytes) / self._largest) - loading
        most -= loading
        room, self._no_room_at = self.window(), self._budget + 1
        for partition, hungry in list(self.running_low.items()):
            if partition in self._loading:
                continue
            spare = {
                key: (lane.parked[partition], room - len(lane.waiting))
                for key in self._parked[partition]
                if not (lane := self._lanes[key]).loading and len(lane.waiting) < room
            }
            # A partition that cannot be read just now must not keep the others from it.
            least = 0 if self._loading else 1
            if counts := shares(spare, hungry, max(least, min(max(most, self._window), (fitting + 1) // 2))):
                wanted[partition] = self._load(partition, counts)
                most -= self._loading[partition]
                fitting -= self._loading[partition]
            else:
                # Asked again once a fair part of the budget is free, or at the next tick: not for every record.
                self._no_room_at = self.payload_bytes - self._budget // 64
        return wanted

    def _load(self, partition: Partition, counts: dict[Key, int]) -> dict[int, Key]:
        chosen: dict[int, Key] = {}
        for key, count in counts.items():
            lane = self._lanes[key]
            for place in lane.parked:
                _drop(self.running_low, place, key)
            offsets = lane.parked[partition]
            chosen.update(dict.fromkeys(offsets[:count], key))
            del offsets[:count]
            lane.loading[partition] = count
            if not offsets:
                del lane.parked[partition]
                _drop(self._parked, partition, key)
        self._loading[partition] = len(chosen)
        return chosen

    def loaded(self, entry: Entry) -> bool:
        """A record asked for by `wanted` is back. False: its partition was revoked meanwhile."""
        if not entry.partition.active:
            return False
        lane = self._lanes[entry.key]
        self._one_loaded(entry.key, lane, entry.partition)
        lane.waiting.append(entry)
        self._took(entry.size)
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
                _drop(self._parked, partition, key)
                _drop(self.running_low, partition, key)
            for partition in [p for p in lane.loading if not p.active]:
                self.parked -= lane.loading.pop(partition)
                self._loading.pop(partition, None)
            self._note_hunger(key, lane)
            if lane.empty():
                del self._lanes[key]
        return lost

    def _took(self, size: int) -> None:
        self.payload_bytes += size
        faded = self._largest * FADES
        self._largest = size if size > faded else faded

    def _lane(self, key: Key) -> _Lane:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        return lane

    def _park(self, lane: _Lane, key: Key, partition: Partition) -> "array[int]":
        offsets = lane.parked.get(partition)
        if offsets is None:
            offsets = lane.parked[partition] = array("q")
            self._parked.setdefault(partition, {})[key] = None
        self.parked += 1
        return offsets

    def _one_loaded(self, key: Key, lane: _Lane, partition: Partition) -> None:
        self.parked -= 1
        self._loading[partition] -= 1
        if not self._loading[partition]:
            del self._loading[partition]
        lane.loading[partition] -= 1
        if not lane.loading[partition]:
            del lane.loading[partition]
            self._note_hunger(key, lane)

    def _note_hunger(self, key: Key, lane: _Lane) -> None:
        if lane.parked and not lane.loading and len(lane.waiting) <= self._low:
            for partition in lane.parked:
                self.running_low.setdefault(partition, {})[key] = None


def _drop(index: dict[Partition, dict[Key, None]], partition: Partition, key: Key) -> None:
    keys = index.get(partition, {})
    if key in keys:
        del keys[key]
        if not keys:
            del index[partition]
