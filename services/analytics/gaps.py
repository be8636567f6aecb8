"""Nothing is skipped unseen: each partition's offsets must follow one another from the last that was settled.

Event topics are not compacted. So a number that is left out is a record that was lost on the way to us, one that
Kafka's retention has deleted before we came to it, or none that anybody is given: the mark at the end of a
transaction, or what that took back. Kafka is asked which. The first ends the process, before anything is committed
over it; the second cannot be helped, and is told; the third is counted.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from messaging import telemetry
from messaging.errors import MessagingError
from services.analytics.counting import Look, Place, progress

log = structlog.get_logger(__name__)

Bound = Callable[[str, int], Awaitable[int]]
"""`Offsets.first`."""


class JumpedOver(MessagingError):
    """The stream gave an event whose predecessors it did not give. Reading it all anew heals that."""


class Offsets(Protocol):
    """What Gaps asks of Kafka; `bounds.Bounds` says it of a running app."""

    async def first(self, topic: str, partition: int) -> int:
        """The first offset Kafka still has of a partition."""

    async def committed(self, topic: str, partition: int) -> int:
        """The group's next offset as it was when the partition was assigned; 0 without any."""

    async def between(self, topic: str, partition: int, since: int, until: int) -> int | None:
        """The first record at or behind `since` and before `until`, if there is any."""

    def passed(self, topic: str, partition: int, since: int, until: int) -> None:
        """Nothing from `since` on and before `until` is given any more: no number of these is acknowledged."""


class Gaps:
    """Watches every record of one app. `look` asks the table."""

    def __init__(self, look: Look, offsets: Offsets) -> None:
        self._look = look
        self._offsets = offsets
        self._next: dict[tuple[str, int], int] = {}

    def reset(self) -> None:
        """Partitions were assigned anew: each begins at its committed offset, perhaps behind what was settled."""
        self._next.clear()

    async def watch(self, place: Place) -> None:
        """Raises JumpedOver, and what asking Kafka raises."""
        partition = place.topic, place.partition
        since = expected = self._next.get(partition)
        if since is None and place.offset:
            since = await self._offsets.committed(*partition)
            last = self._look(progress(*partition))
            expected = since if last is None else int(last["o"]) + 1
        if expected is not None and place.offset > expected:
            await self._explain(place, expected)
        if since is not None and place.offset > since:
            # Also what was settled before, committed by nobody, and has gone from Kafka since.
            self._offsets.passed(*partition, since, place.offset)
        self._next[partition] = place.offset + 1

    async def _explain(self, place: Place, expected: int) -> None:
        topic, partition, offset = place
        lost = await self._offsets.between(topic, partition, expected, offset)
        if lost is not None:
            raise JumpedOver(
                f"{topic}/{partition} went from {expected - 1} to {offset}, though there is an event at {lost}."
                f" Nothing was committed over it: the next start reads on from {expected}."
            )
        # Asked last: what retention deletes between the two questions has been deleted, and was not empty.
        kept = min(max(await self._offsets.first(topic, partition), expected), offset)
        if kept < offset:
            telemetry.OFFSETS_EMPTY.labels(topic).inc(offset - kept)
            log.info("analytics.offsets_empty", topic=topic, partition=partition, since=kept, until=offset)
        if expected < kept:
            telemetry.EVENTS_EXPIRED.labels(topic).inc(kept - expected)
            log.error("analytics.expired", topic=topic, partition=partition, events=kept - expected)


def resume_at(last: int, committed: int, first: int) -> int:
    """Where to read on when the last offset settled lies before the committed one: what was committed over is read
    again, as far as Kafka still has it (`first` on)."""
    return min(committed, max(last + 1, first))
