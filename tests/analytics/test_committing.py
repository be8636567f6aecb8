"""How far is committed, whatever numbers are left out and however many."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from confluent_kafka import TopicPartition
from faust.types import TP
from intervaltree import IntervalTree

from services.analytics.committing import Committing, reach
from tests.analytics.conftest import Place, Start, request, until

PLACE = TP("t", 0)
HUGE = 10**15
"""No list holds so many."""


def consumer(committed: int | None) -> Committing:
    made = Committing.__new__(Committing)
    made._gap, made._acked, made._acked_index = defaultdict(IntervalTree), defaultdict(list), defaultdict(set)
    made._committed_offset = defaultdict(lambda: None, {PLACE: committed})
    return made


def ack(made: Committing, *offsets: int) -> int | None:
    made._acked[PLACE].extend(offsets)
    made._acked_index[PLACE].update(offsets)
    end = made._new_offset(PLACE)
    if end is not None:
        made._committed_offset[PLACE] = end
    return end


@pytest.mark.parametrize(
    ("start", "acked", "passed", "end"),
    [
        (3, [], [], 3),
        (3, [3, 4, 6], [], 5),
        (3, [4], [], 3),
        (3, [4, 5], [(3, 4)], 6),
        (3, [3, 6], [(4, 6), (7, 9)], 9),
        (3, [3], [(5, 6)], 4),
        (3, [1, 3], [(0, 3), (2, 4)], 4),
        (0, [HUGE], [(0, HUGE)], HUGE + 1),
    ],
)
def test_it_reaches_to_what_is_neither_acknowledged_nor_passed_over(
    start: int, acked: Sequence[int], passed: Sequence[tuple[int, int]], end: int
) -> None:
    assert reach(start, acked, passed) == end


@pytest.mark.parametrize("committed", [None, 10])
async def test_a_head_that_has_expired_is_passed_over_at_once(committed: int | None) -> None:
    """What faust itself sees of it is as long, and left alone."""
    made = consumer(committed)
    await made._add_gap(PLACE, (committed or 0) + 1, HUGE)
    made.passed(PLACE, committed or 0, HUGE)
    assert ack(made, HUGE) == HUGE + 1
    assert ack(made, HUGE + 1, HUGE + 2) == HUGE + 3
    assert (made._acked[PLACE], made._acked_index[PLACE], len(made._gap[PLACE])) == ([], set(), 0)


def test_what_expires_amid_the_stream_waits_for_what_was_given_before() -> None:
    made = consumer(10)
    made.passed(PLACE, 12, HUGE)
    assert ack(made, 10) == 11
    # 11 is in hand still.
    assert ack(made, HUGE) is None
    assert ack(made, 11) == HUGE + 1


async def test_nothing_is_committed_over_that_nobody_acknowledged() -> None:
    made = consumer(10)
    assert ack(made, 11, 13) is None
    # So faust says it of 12, before Kafka has been asked, and when 13 is given.
    await made._add_gap(PLACE, 12, 13)
    assert ack(made, 10) == 12
    made.passed(PLACE, 12, 13)
    assert ack(made, 14) == 15


def test_what_retention_has_deleted_holds_up_nobody(place: Place, start: Start) -> None:
    """Before anybody committed; while nobody counted; and of what was counted and not committed."""
    place.send([request(n) for n in range(5)])
    (partition,) = {record.partition() for record in place.read_all(place.requests)}
    assert partition is not None
    expired = "workbot_events_expired_total"

    place.delete_before(place.requests, partition, 3)
    with start() as counter:
        until(lambda: place.committed_of(place.requests, partition) == 5, counter)
        assert (counter.total(), counter.metric(expired)) == (2, 3)
    place.send([request(n) for n in range(4)])
    place.delete_before(place.requests, partition, 8)
    with start() as counter:
        until(lambda: place.committed_of(place.requests, partition) == 9, counter)
        assert (counter.total(), counter.metric(expired)) == (3, 3)
    place.move([TopicPartition(place.requests, partition, 5)])
    place.send([request(1)])
    place.delete_before(place.requests, partition, 9)
    with start() as counter:
        until(lambda: place.committed_of(place.requests, partition) == 10, counter)
        assert (counter.total(), counter.metric(expired)) == (4, 0)
