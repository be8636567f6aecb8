"""Faust's table made safe: every write names its partition and can be awaited, and recovery keeps quiet at its end.

Written against the insides of faust-streaming 0.15.3; docs/decisions/0007-analytics-tables.md says what was found.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import faust
from faust import streams
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery

from services.analytics.counting import Name, Value

QUIET_SECONDS = 1.5
"""Longer than the fetch that may still be waiting in the consumer's thread when recovery ends (1 s)."""

BREATH = 500
"""Keys read in one go; the loop has others to serve."""

Recovered = Callable[[], Awaitable[None]]


class Counts(faust.Table[str, Value]):
    """A table whose keys say which partition they belong to (`counting.Name`). `writes` counts what changes here."""

    writes = 0

    def look(self, key: str) -> Value | None:
        """The value of a key on this disk."""
        with _at(key):
            found: Value | None = self.get(key)
            return found

    def write(self, key: str, value: Value | None) -> "asyncio.Future[Any]":
        """Set a key, or remove it (None), on this disk at once; done when the changelog has it on Kafka."""
        with _at(key) as partition:
            if value is not None:
                self.writes += 1
                self.data[key] = value
                return self.send_changelog(partition, key, value)
        self.drop(key)
        # Also for a key that is not here: Kafka may still have it.
        return self.end(key)

    def end(self, key: str) -> "asyncio.Future[Any]":
        """Remove a key from Kafka, and leave it on this disk; done when the changelog has its tombstone."""
        with _at(key) as partition:
            return self.send_changelog(partition, key, None, value_serializer="raw")

    def drop(self, key: str) -> None:
        """Remove a key from this disk at once, and leave it on Kafka."""
        self.writes += 1
        with _at(key):
            self.data.pop(key, None)

    async def everything(self) -> AsyncIterator[tuple[str, Value]]:
        """All keys with their values, from this disk, in pieces: what changes meanwhile may be seen or not."""
        for count, (key, value) in enumerate(self.data.items(), 1):
            yield key, value
            if count % BREATH == 0:
                await asyncio.sleep(0)


class Tables(TableManager):
    """All tables of an app; `recovered` is awaited whenever they are up to date and before any event is counted."""

    recovered: Recovered | None = None

    @property
    def recovery(self) -> Recovery:
        if self._recovery is None:
            self._recovery = QuietRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery


class QuietRecovery(Recovery):
    """Lets the fetch that is under way end before the source partitions are opened and sought.

    0.15.3 empties the agents' queues at that moment. What a fetch brought in between was taken for delivered: with a
    backlog, events were skipped and committed over.
    """

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        self.app.consumer.stop_flow()
        await asyncio.sleep(QUIET_SECONDS)
        self.flush_buffers()
        tables = self.tables
        if isinstance(tables, Tables) and tables.recovered is not None:
            await tables.recovered()
        await super().on_recovery_completed(generation_id)


class _Spot:
    """Stands where faust looks for the event that is being worked on, to learn the partition from it."""

    __slots__ = ("__weakref__", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition

    @property
    def message(self) -> "_Spot":
        return self


@contextmanager
def _at(key: str) -> Iterator[int]:
    name = Name.parse(key)
    spot = _Spot(name.topic, name.partition)
    token = streams._current_event.set(weakref.ref(spot))  # type: ignore[arg-type]
    try:
        yield name.partition
    finally:
        streams._current_event.reset(token)
