"""All counts in memory, the way they are asked for. Made from the table, and kept up with every write to it.

Sums over all senders of a tenant may be long, and the loop has others to serve: `events` adds up in pieces. What is
counted meanwhile is in its answer or not. Copied in one go, when their turn comes, are the senders of one type in one
bucket.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from sys import intern

from services.analytics.counting import READ_WITHIN, READING, SECONDS, Name, Value, Window

BREATH = 1000
"""Counts added up in one go."""


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


@dataclass(slots=True)
class _Cell:
    """One type in one bucket: all that happened, and by sender."""

    total: int = 0
    senders: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Day:
    """The times to read of one day: all, and by sender."""

    total: Reading = field(default_factory=Reading)
    senders: dict[str, Reading] = field(default_factory=dict)


class Cube:
    """Counts by tenant, window, bucket, type and sender. Nothing is left of a tenant or sender without counts."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Window], dict[int, dict[str, _Cell]]] = {}
        self._reading: dict[str, dict[int, _Day]] = {}
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
            self._count((tenant, kind), int(start), type_, intern(sender), change)
        elif kind == READING:
            start, tenant, sender = rest
            self._read(tenant, int(start), intern(sender), before, after)

    async def events(
        self, tenant: str, window: Window, since: int, until: int, *, type_: str | None, sender: str | None
    ) -> dict[str, dict[str, int]]:
        """Counts by sender and type over the buckets that begin in [since, until)."""
        found: dict[str, dict[str, int]] = {}
        buckets, breath = self._counts.get((tenant, window), {}), 0
        for start in [start for start in buckets if since <= start < until]:
            for kind, cell in list(buckets.get(start, {}).items()):
                if type_ not in (None, kind):
                    continue
                counts = iter(_of(cell.senders, sender))
                while piece := list(islice(counts, BREATH)):
                    for name, count in piece:
                        own = found.setdefault(name, {})
                        own[kind] = own.get(kind, 0) + count
                    breath += len(piece)
                    if breath >= BREATH:
                        breath = 0
                        await asyncio.sleep(0)
                breath += 1
        return found

    def series(
        self, tenant: str, window: Window, since: int, until: int, *, type_: str | None, sender: str | None
    ) -> list[tuple[int, int]]:
        """(bucket, count) for each bucket that begins in [since, until), empty ones included."""
        buckets = self._counts.get((tenant, window), {})
        return [
            (start, _sum(buckets.get(start, {}), type_, sender)) for start in range(since, until, SECONDS[window])
        ]

    def reading(self, tenant: str, since: int, until: int, *, sender: str | None) -> Reading:
        """Times to read of the days that begin in [since, until)."""
        found = Reading()
        for start, day in self._reading.get(tenant, {}).items():
            if since <= start < until:
                own = day.total if sender is None else day.senders.get(sender)
                if own is not None:
                    found.plus(own)
        return found

    def _count(self, place: tuple[str, Window], start: int, type_: str, sender: str, change: int) -> None:
        buckets = self._counts.setdefault(place, {})
        cells = buckets.setdefault(start, {})
        cell = cells.setdefault(intern(type_), _Cell())
        cell.total += change
        cell.senders[sender] = cell.senders.get(sender, 0) + change
        if not cell.senders[sender]:
            del cell.senders[sender]
        if not cell.senders:
            del cells[type_]
        if not cells:
            del buckets[start]
        if not buckets:
            del self._counts[place]

    def _read(self, tenant: str, start: int, sender: str, before: Value | None, after: Value | None) -> None:
        days = self._reading.setdefault(tenant, {})
        day = days.setdefault(start, _Day())
        own = day.senders.setdefault(sender, Reading())
        for reading in (own, day.total):
            if before is not None:
                reading.add(before, -1)
            if after is not None:
                reading.add(after)
        if not own.count:
            del day.senders[sender]
        if not day.senders:
            del days[start]
        if not days:
            del self._reading[tenant]


async def rank(found: Mapping[str, Mapping[str, int]], most: int) -> tuple[Counter[str], list[str]]:
    """Of counts by sender and type, which nobody changes: the sums by type, and the busiest senders first, so many at
    most."""
    by_type: Counter[str] = Counter()
    top: list[tuple[int, str]] = []
    rest = iter(found.items())
    while piece := list(islice(rest, BREATH)):
        for name, counts in piece:
            for type_, count in counts.items():
                by_type[type_] += count
            top.append((-sum(counts.values()), name))
        top = nsmallest(most, top)
        await asyncio.sleep(0)
    return by_type, [name for _, name in top]


def _of(senders: Mapping[str, int], sender: str | None) -> list[tuple[str, int]]:
    if sender is None:
        return list(senders.items())
    return [(sender, senders[sender])] if sender in senders else []


def _sum(cells: Mapping[str, _Cell], type_: str | None, sender: str | None) -> int:
    return sum(
        cell.total if sender is None else cell.senders.get(sender, 0)
        for kind, cell in cells.items()
        if type_ in (None, kind)
    )


_NONE: Value = {"n": 0}
