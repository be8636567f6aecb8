"""Pure: all counts in memory, the way they are asked for. Made from the table, and kept up with every write to it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from services.analytics.counting import READ_WITHIN, READING, SECONDS, Name, Value, Window

Cell = tuple[str, str]
"""An event's type, and its sender."""


@dataclass(slots=True)
class Reading:
    """Times to read: how many, their sum in seconds, and how many fell into each bucket of READ_WITHIN and beyond."""

    count: int = 0
    seconds: float = 0.0
    within: list[int] = field(default_factory=lambda: [0] * (len(READ_WITHIN) + 1))

    def add(self, value: Value, sign: int = 1) -> None:
        """Add a value of the table, or take it away."""
        self.count += sign * value["n"]
        self.seconds += sign * value["s"]
        self.within = [own + sign * other for own, other in zip(self.within, value["b"], strict=True)]

    def plus(self, other: "Reading") -> None:
        """Add another one."""
        self.add({"n": other.count, "s": other.seconds, "b": other.within})


class Cube:
    """Counts by tenant, window, bucket, type and sender."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Window], dict[int, dict[Cell, int]]] = {}
        self._reading: dict[str, dict[int, dict[str, Reading]]] = {}
        self.keys = 0

    def become(self, other: "Cube") -> None:
        """Hold what the other one holds."""
        self._counts, self._reading, self.keys = other._counts, other._reading, other.keys

    def apply(self, key: str, before: Value | None, after: Value | None) -> None:
        """A key of the table has changed."""
        self.keys += (after is not None) - (before is not None)
        kind, *rest = Name.parse(key).rest
        if kind in SECONDS:
            start, type_, tenant, sender = rest
            change = (after or _NONE)["n"] - (before or _NONE)["n"]
            self._count(tenant, kind, int(start), (type_, sender), change)
        elif kind == READING:
            start, tenant, sender = rest
            self._read(tenant, int(start), sender, before, after)

    def events(
        self, tenant: str, window: Window, since: int, until: int, *, type_: str | None, sender: str | None
    ) -> dict[Cell, int]:
        """Counts by type and sender over the buckets that begin in [since, until)."""
        found: dict[Cell, int] = defaultdict(int)
        for start, cells in self._counts.get((tenant, window), {}).items():
            if since <= start < until:
                for cell, count in _wanted(cells, type_, sender):
                    found[cell] += count
        return dict(found)

    def series(
        self, tenant: str, window: Window, since: int, until: int, *, type_: str | None, sender: str | None
    ) -> list[tuple[int, int]]:
        """(bucket, count) for each bucket that begins in [since, until), empty ones included."""
        buckets = self._counts.get((tenant, window), {})
        return [
            (start, sum(count for _, count in _wanted(buckets.get(start, {}), type_, sender)))
            for start in range(since, until, SECONDS[window])
        ]

    def reading(self, tenant: str, since: int, until: int, *, sender: str | None) -> Reading:
        """Times to read of the days that begin in [since, until)."""
        found = Reading()
        for start, senders in self._reading.get(tenant, {}).items():
            if since <= start < until:
                for name, reading in senders.items():
                    if sender in (None, name):
                        found.plus(reading)
        return found

    def first(self, tenant: str, window: Window) -> int | None:
        """Where a tenant's first bucket begins."""
        return min(self._counts.get((tenant, window), {}), default=None)

    def _count(self, tenant: str, window: Window, start: int, cell: Cell, change: int) -> None:
        buckets = self._counts.setdefault((tenant, window), {})
        cells = buckets.setdefault(start, {})
        count = cells.get(cell, 0) + change
        if count:
            cells[cell] = count
            return
        cells.pop(cell, None)
        if not cells:
            del buckets[start]

    def _read(self, tenant: str, start: int, sender: str, before: Value | None, after: Value | None) -> None:
        days = self._reading.setdefault(tenant, {})
        reading = days.setdefault(start, {}).setdefault(sender, Reading())
        if before is not None:
            reading.add(before, -1)
        if after is not None:
            reading.add(after)
        if not reading.count:
            del days[start][sender]
            if not days[start]:
                del days[start]


def _wanted(cells: dict[Cell, int], type_: str | None, sender: str | None) -> Iterator[tuple[Cell, int]]:
    for cell, count in cells.items():
        if type_ in (None, cell[0]) and sender in (None, cell[1]):
            yield cell, count


_NONE: Value = {"n": 0}
