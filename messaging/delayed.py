"""Pure: records that wait for a time of their own, such as a retry. Holds no slot and blocks no other key."""

import heapq
from collections.abc import Iterator
from itertools import count

from messaging.lanes import Entry


class Delayed:
    """A heap by due time (seconds on the caller's clock)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry]:
        """All of them, in no order. Not to be changed meanwhile."""
        return (item[2] for item in self._heap)

    def add(self, entry: Entry, due_at: float) -> None:
        """Keep the entry until `due_at`; equal times keep their order."""
        heapq.heappush(self._heap, (due_at, next(self._order), entry))

    def due(self, now: float) -> list[Entry]:
        """Take out what is due, earliest first."""
        entries = []
        while self._heap and self._heap[0][0] <= now:
            entries.append(heapq.heappop(self._heap)[2])
        return entries

    def next_in(self, now: float) -> float | None:
        """Seconds until the first is due; None when nothing waits."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None

    def drop_inactive(self) -> list[Entry]:
        """Take out what belongs to revoked partitions."""
        dropped = [item[2] for item in self._heap if not item[2].partition.active]
        if dropped:
            self._heap = [item for item in self._heap if item[2].partition.active]
            heapq.heapify(self._heap)
        return dropped
