"""How far a partition is committed: over what was acknowledged, and over numbers that are said to be nobody's.

Faust writes such numbers down one by one, and after an outage longer than Kafka's retention they are millions: the
loop stands still for seconds, and memory fills. It also commits over one number that nobody acknowledged, and no
further than to the end of one gap at a time. Written against the insides of faust-streaming 0.15.3.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import merge

from faust.transport.drivers import aiokafka as driver
from faust.types import TP


class Committing(driver.Consumer):
    """Faust's consumer, told by `passed` about every number that is left out (`gaps.Gaps` sees them all)."""

    def passed(self, place: TP, since: int, until: int) -> None:
        """There is nothing to acknowledge from `since` on and before `until`: it may be committed over. To be called
        before the record at `until` is acknowledged.
        """
        self._gap[place].addi(since, until)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Faust has seen numbers left out. It has not asked Kafka whether they may be, and takes the record behind
        them for one of them.
        """

    def _new_offset(self, tp: TP) -> int | None:
        acked = self._acked[tp]
        if not acked:
            return None
        acked.sort()
        committed = self._committed_offset[tp]
        start = acked[0] if committed is None else committed
        passed = self._gap[tp]
        end = reach(start, acked, ((gap.begin, gap.end) for gap in sorted(passed)))
        done = bisect_left(acked, end)
        self._acked_index[tp].difference_update(acked[:done])
        del acked[:done]
        passed.chop(0, end)
        return end if end > start else None


def reach(start: int, acked: Sequence[int], passed: Iterable[tuple[int, int]]) -> int:
    """The first offset from `start` on that is neither acknowledged nor passed over. Both are in order; of what is
    passed over the ends are excluded."""
    at = start
    for begin, end in merge(((one, one + 1) for one in acked), passed):
        if begin > at:
            break
        at = max(at, end)
    return at
