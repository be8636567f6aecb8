"""Pure: how far one assigned partition may be committed, when records finish in any order.

The commit is the next offset after the highest contiguous finished record. Contiguous means over the records that
were seen: compaction and transaction markers leave gaps in the numbers that no record will ever fill.

Both what was seen and what is finished are kept as merged runs, so a million records in a row that finished, or that
are parked, cost as much as one.
"""

from bisect import bisect_right


class _Runs:
    """Disjoint half-open runs [start, end) of offsets, ascending, merged where they touch."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self.starts, offset) - 1
        return index >= 0 and offset < self.ends[index]

    def add(self, offset: int) -> None:
        """Add one offset that is not in it."""
        starts, ends = self.starts, self.ends
        index = bisect_right(starts, offset)
        joins_left = index > 0 and ends[index - 1] == offset
        joins_right = index < len(starts) and starts[index] == offset + 1
        if joins_left and joins_right:
            ends[index - 1] = ends[index]
            del starts[index], ends[index]
        elif joins_left:
            ends[index - 1] = offset + 1
        elif joins_right:
            starts[index] = offset
        else:
            starts.insert(index, offset)
            ends.insert(index, offset + 1)

    def drop_below(self, offset: int) -> None:
        """Forget everything below `offset`."""
        index = bisect_right(self.starts, offset)
        if index and self.ends[index - 1] > offset:
            index -= 1
            self.starts[index] = offset
        del self.starts[:index], self.ends[:index]

    def first(self) -> int | None:
        return self.starts[0] if self.starts else None


class PartitionOffsets:
    """One partition for as long as it is assigned to this process."""

    __slots__ = ("_committed", "_finished", "_next", "_position", "_seen", "pending")

    def __init__(self) -> None:
        self._seen = _Runs()  # from the first unfinished record on
        self._finished = _Runs()  # those among them that finished early
        self._next = -1  # one past the newest record seen
        self._position: int | None = None  # what may be committed
        self._committed: int | None = None
        self.pending = 0
        """Records seen and not finished."""

    def seen(self, offset: int) -> bool:
        """A record was read, in ascending order. False: an older one, read again; it is known already."""
        if offset < self._next:
            return False
        if self._position is None or not self._seen.starts:
            # Nothing is pending below: the numbers skipped belong to no record.
            self._position = offset
        self._seen.add(offset)
        self._next = offset + 1
        self.pending += 1
        return True

    def finished(self, offset: int) -> bool:
        """A record is done with. False: it was not pending (never seen, or finished before), and nothing changed."""
        if offset not in self._seen or offset in self._finished:
            return False
        self.pending -= 1
        self._finished.add(offset)
        self._advance()
        return True

    def _advance(self) -> None:
        # While the first finished run begins at the first seen record, both move past its end.
        while self._finished.starts and self._finished.starts[0] == self._seen.starts[0]:
            end = self._finished.ends[0]
            self._finished.drop_below(end)
            self._seen.drop_below(end)
            first = self._seen.first()
            if first is None:
                self._position = self._next
                return
            self._position = first

    def committable(self) -> int | None:
        """The next offset to commit; None when the broker has it already or nothing was seen."""
        return None if self._position == self._committed else self._position

    def committed(self, offset: int) -> None:
        """The broker has stored this offset."""
        self._committed = offset

    @property
    def stored(self) -> int | None:
        """What the broker is known to have stored for us."""
        return self._committed

    @property
    def oldest_pending(self) -> int | None:
        """The record that holds the commit back."""
        return self._seen.first()
