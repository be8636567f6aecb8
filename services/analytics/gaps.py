"""Nothing is skipped unseen: each partition's offsets must follow one another from the last that was settled.

Event topics have no transactions and are not compacted, so a number that is left out is a record that was lost on the
way to us, or that Kafka's retention has deleted before we came to it. The first ends the process, before anything is
committed over it; the second cannot be helped, and is told.
"""

from collections.abc import Awaitable, Callable

import structlog

from messaging import telemetry
from messaging.errors import MessagingError
from services.analytics.counting import Look, Place, progress

log = structlog.get_logger(__name__)

Bound = Callable[[str, int], Awaitable[int]]


class JumpedOver(MessagingError):
    """The stream gave an event whose predecessors it did not give. Reading it all anew heals that."""


class Gaps:
    """Watches every record of one app. `look` asks the table; `first` is the first offset Kafka still has of a
    partition, `committed` the group's next one as it was when the partition was assigned (0 without any).
    """

    def __init__(self, look: Look, first: Bound, committed: Bound) -> None:
        self._look = look
        self._first = first
        self._committed = committed
        self._next: dict[tuple[str, int], int] = {}

    def reset(self) -> None:
        """Partitions were assigned anew: each begins at its committed offset, perhaps behind what was settled."""
        self._next.clear()

    async def watch(self, place: Place) -> None:
        """Raises JumpedOver."""
        partition = place.topic, place.partition
        expected = self._next.get(partition)
        if expected is None and place.offset:
            last = self._look(progress(*partition))
            expected = await self._committed(*partition) if last is None else int(last["o"]) + 1
        if expected is not None and place.offset > expected:
            await self._explain(place, expected)
        self._next[partition] = place.offset + 1

    async def _explain(self, place: Place, expected: int) -> None:
        first = await self._first(place.topic, place.partition)
        if place.offset > max(first, expected):
            raise JumpedOver(
                f"{place.topic}/{place.partition} went from {expected - 1} to {place.offset}. If this comes"
                f" again, move the group back to {expected}."
            )
        telemetry.EVENTS_EXPIRED.labels(place.topic).inc(place.offset - expected)
        log.error("analytics.expired", topic=place.topic, partition=place.partition, events=place.offset - expected)


def resume_at(last: int, committed: int, first: int) -> int:
    """Where to read on when the last offset settled lies before the committed one: what was committed over is read
    again, as far as Kafka still has it (`first` on)."""
    return min(committed, max(last + 1, first))
