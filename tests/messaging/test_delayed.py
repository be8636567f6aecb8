"""Records that wait for their time: order, due times, revocation."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.delayed import Delayed
from messaging.entries import Bare, Entry, Partition
from messaging.message import Key, RawHeaders


class Record:
    def key(self) -> bytes:
        return b"acme:ann"

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> RawHeaders:
        return []

    def offset(self) -> int:
        return 0


def entry(partition: Partition, offset: int) -> Entry:
    return Entry(Key("acme", "ann"), partition, offset, Record(), 2, 0.0)


def partition() -> Partition:
    return Partition("jobs.reader.retry", 0, is_retry=True)


@given(st.lists(st.integers(0, 50), max_size=60), st.lists(st.integers(0, 60), max_size=10).map(sorted))
@settings(derandomize=True, deadline=None)
def test_each_comes_out_once_when_it_is_due_earliest_first(dues: list[int], looks: list[int]) -> None:
    delayed, home, out = Delayed(), partition(), []
    for offset, due in enumerate(dues):
        delayed.add(entry(home, offset), float(due))
    left = sorted((due, offset) for offset, due in enumerate(dues))
    for now in [*looks, 60]:
        assert delayed.next_in(now) == (max(0.0, left[0][0] - now) if left else None)
        expected = [offset for due, offset in left if due <= now]
        left = left[len(expected) :]
        came = [each.offset for each in delayed.due(now)]
        assert came == expected
        assert len(delayed) == len(left)
        out += came
    assert sorted(out) == list(range(len(dues)))


def test_revoked_partitions_are_taken_out_and_the_rest_keeps_its_order() -> None:
    delayed, kept, revoked = Delayed(), partition(), partition()
    order = random.Random(1).sample(range(100), 100)
    for offset in order:
        delayed.add(entry(kept if offset % 3 else revoked, offset), offset / 10)
    assert delayed.drop_inactive() == []
    revoked.active = False
    assert sorted(each.offset for each in delayed.drop_inactive()) == list(range(0, 100, 3))
    assert [each.offset for each in delayed.due(10.0)] == [offset for offset in range(100) if offset % 3]
    assert delayed.next_in(10.0) is None


def test_beyond_the_room_only_the_place_is_kept_and_what_leaves_makes_room() -> None:
    delayed, home = Delayed(), partition()
    for offset in range(4):
        delayed.add(entry(home, offset), float(offset), room=5)
    assert delayed.payload_bytes == 4
    assert [each.offset for each in delayed.due(0.0)] == [0]
    delayed.add(entry(home, 4), 4.0, room=5)
    delayed.add(entry(home, 5), 5.0)
    assert delayed.payload_bytes == 6, "what cannot be read again is kept whatever its size"
    came = delayed.due(9.0)
    assert [isinstance(each, Bare) for each in came] == [False, True, True, False, False]
    assert [each.offset for each in came] == [1, 2, 3, 4, 5]
    assert delayed.payload_bytes == 0
    delayed.add(entry(home, 6), 1.0)
    home.active = False
    delayed.drop_inactive()
    assert delayed.payload_bytes == 0
