"""Pure: how far one assigned partition may be committed, when records finish in any order.

The commit is the next offset after the highest contiguous finished record. Contiguous means over the records that
were seen: compaction and transaction markers leave gaps in the numbers that no record will ever fill.

Both what was seen and what is finished are kept as merged runs, so a million records in a row that finished, or that
are parked, cost as much as a few.
"""

from bisect import bisect_right

BLOCK = 16_384
"""Offsets a block of runs spans: runs merge inside one only, so no list is long, whatever order records finish in."""


class _Runs:
    """Disjoint half-open runs [start, end) of offsets by block, ascending, merged where they touch."""

    __slots__ = ("_blocks", "_newest")

    def __init__(self) -> None:
        self._newest: list[int] = []  # the ends of the block that was appended to
        self._blocks: dict[int, tuple[list[int], list[int]]] = {}  # the starts and the ends of each block's runs

    def __len__(self) -> int:
        return sum(len(starts) for starts, _ in self._blocks.values())

    def __contains__(self, offset: int) -> bool:
        block = self._blocks.get(offset // BLOCK)
        if block is None:
            return False
        starts, ends = block
        index = bisect_right(starts, offset) - 1
        return index >= 0 and offset < ends[index]

    def add(self, offset: int) -> bool:
        """Add one offset. False: it was in it."""
        block = self._blocks.get(offset // BLOCK)
        if block is None:
            self._blocks[offset // BLOCK] = [offset], [offset + 1]
            return True
        starts, ends = block
        index = bisect_right(starts, offset)
        if index and offset < ends[index - 1]:
            return False
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
        return True

    def append(self, offset: int) -> None:
        """Add one that is higher than all in it."""
        ends = self._newest
        if ends and ends[-1] == offset and offset % BLOCK:
            ends[-1] = offset + 1
        else:
            self.add(offset)
            self._newest = self._blocks[offset // BLOCK][1]

    def first_of_block(self, offset: int) -> tuple[int, int] | None:
        """The first run in the block of that offset."""
        block = self._blocks.get(offset // BLOCK)
        return (block[0][0], block[1][0]) if block else None

    def drop_first(self, end: int) -> None:
        """Forget the offsets below `end` of the first run in the block of `end - 1`."""
        number = (end - 1) // BLOCK
        starts, ends = self._blocks[number]
        if ends[0] > end:
            starts[0] = end
            return
        del starts[0], ends[0]
        if not starts:
            del self._blocks[number]

    def first(self) -> int | None:
        """The lowest offset, when all were added in ascending order."""
        for starts, _ in self._blocks.values():
            return starts[0]
        return None


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
        if not self.pending:
            # Nothing is pending below: the numbers skipped belong to no record.
            self._position = offset
        self._seen.append(offset)
        self._next = offset + 1
        self.pending += 1
        return True

    def finished(self, offset: int) -> bool:
        """A record is done with. False: it was not pending (never seen, or finished before), and nothing changed."""
        if self.pending and offset == self._position:
            self.pending -= 1
            self._seen.drop_first(offset + 1)
            self._advance()
            return True
        if offset not in self._seen or not self._finished.add(offset):
            return False
        self.pending -= 1
        return True

    def _advance(self) -> None:
        # While the first record seen begins a finished run, both move past its end.
        while (first := self._seen.first()) is not None:
            run = self._finished.first_of_block(first)
            if run is None or run[0] != first:
                self._position = first
                return
            self._finished.drop_first(run[1])
            self._seen.drop_first(run[1])
        self._position = self._next

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
