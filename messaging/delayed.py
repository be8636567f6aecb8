"""Pure: records that wait for a time of their own, such as a retry. Holds no slot and blocks no other key.

Those that can be read again keep their payload here only while there is room for it.
"""

import heapq
from collections.abc import Iterator
from itertools import count

from messaging.entries import Bare, Entry


class Delayed:
    """A heap by due time (seconds on the caller's clock)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry | Bare]] = []
        self._order = count()
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry | Bare]:
        """All of them, in no order. Not to be changed meanwhile."""
        return (item[2] for item in self._heap)

    def add(self, entry: Entry, due_at: float, room: int | None = None) -> None:
        """Keep the entry until `due_at`; equal times keep their order.

        With `room`, the bytes that all payloads here may take: one that does not fit comes out bare.
        """
        if room is not None and self.payload_bytes + entry.size > room:
            self._push(Bare(entry.key, entry.partition, entry.offset), due_at)
            return
        self.payload_bytes += entry.size
        self._push(entry, due_at)

    def due(self, now: float) -> list[Entry | Bare]:
        """Take out what is due, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(self._taken(heapq.heappop(self._heap)[2]))
        return due

    def next_in(self, now: float) -> float | None:
        """Seconds until the first is due; None when nothing waits."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None

    def drop_inactive(self) -> list[Entry | Bare]:
        """Take out what belongs to revoked partitions."""
        dropped = [self._taken(item[2]) for item in self._heap if not item[2].partition.active]
        if dropped:
            self._heap = [item for item in self._heap if item[2].partition.active]
            heapq.heapify(self._heap)
        return dropped

    def _push(self, item: Entry | Bare, due_at: float) -> None:
        heapq.heappush(self._heap, (due_at, next(self._order), item))

    def _taken(self, item: Entry | Bare) -> Entry | Bare:
        if isinstance(item, Entry):
            self.payload_bytes -= item.size
        return item
