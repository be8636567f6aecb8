"""Lanes: order per key, the window, parked offsets, the byte budget, revocation."""

from collections import deque
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.entries import Entry, Partition
from messaging.lanes import Lanes
from messaging.message import Key

NOISY = Key("acme", "noisy")
QUIET = Key("acme", "quiet")


@dataclass
class Record:
    size: int = 100

    def key(self) -> bytes:
        return b"acme:noisy"

    def value(self) -> bytes:
        return b"x" * self.size

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        return []

    def offset(self) -> int:
        return 0


def entry(key: Key, partition: Partition, offset: int, size: int = 100) -> Entry:
    return Entry(key, partition, offset, Record(size), size, 0.0)


def test_a_senders_backlog_is_kept_as_offsets_beyond_its_window() -> None:
    lanes, partition = Lanes(window=4), Partition("jobs", 0, is_retry=False)
    assert [lanes.add(entry(NOISY, partition, offset)) for offset in range(1000)] == [True] * 4 + [False] * 996
    assert lanes.add(entry(QUIET, partition, 1000)), "another sender behind it is in memory at once"
    assert lanes.parked == 996
    assert lanes.payload_bytes == 500


def test_parked_records_come_back_in_order_when_the_window_runs_low() -> None:
    lanes, partition = Lanes(window=8), Partition("jobs", 0, is_retry=False)
    for offset in range(30):
        lanes.add(entry(NOISY, partition, offset))
    taken: list[int] = []
    while len(taken) < 30:
        taken.append(lanes.take(NOISY).offset)
        for place, wanted in lanes.wanted().items():
            for offset in sorted(wanted):
                assert lanes.loaded(entry(wanted[offset], place, offset))
    assert taken == list(range(30))
    assert (lanes.parked, lanes.payload_bytes) == (0, 0)


def test_what_arrives_while_records_are_being_loaded_queues_behind_them() -> None:
    lanes, partition = Lanes(window=4), Partition("jobs", 0, is_retry=False)
    for offset in range(6):
        lanes.add(entry(NOISY, partition, offset))
    assert [lanes.take(NOISY).offset for _ in range(4)] == [0, 1, 2, 3]
    wanted = lanes.wanted()
    assert wanted == {partition: {4: NOISY, 5: NOISY}}
    assert not lanes.add(entry(NOISY, partition, 6)), "parked: 4 and 5 are on their way"
    for offset in (4, 5):
        lanes.loaded(entry(NOISY, partition, offset))
    assert [lanes.take(NOISY).offset for _ in range(2)] == [4, 5]
    assert lanes.wanted() == {partition: {6: NOISY}}


def test_one_byte_budget_shrinks_every_window() -> None:
    lanes, partition = Lanes(window=100, budget=10_000), Partition("jobs", 0, is_retry=False)
    for offset in range(2000):
        lanes.add(entry(Key("acme", f"s{offset % 20}"), partition, offset))
    assert lanes.payload_bytes <= 10_000
    assert lanes.parked == 2000 - lanes.payload_bytes // 100


def test_a_lane_that_got_no_room_is_fed_once_there_is_some() -> None:
    lanes, partition = Lanes(window=4, budget=1000), Partition("jobs", 0, is_retry=False)
    lanes.add(entry(NOISY, partition, 0, size=1000))
    assert not lanes.add(entry(QUIET, partition, 1))
    assert lanes.wanted() == {}
    lanes.take(NOISY)
    assert lanes.wanted() == {partition: {1: QUIET}}


def test_large_records_that_are_read_again_stay_within_the_budget_and_all_come() -> None:
    lanes, size, budget = Lanes(window=200, budget=6_400), 100, 6_400
    partitions = [Partition("jobs", number, is_retry=False) for number in range(6)]
    for offset in range(250):
        for partition in partitions:
            lanes.add(entry(Key("acme", f"s{offset % 50}-{partition.number}"), partition, offset, size))
    left, loading, most = 6 * 250, deque[tuple[Partition, int, Key]](), 0
    while left:
        for partition, wanted in lanes.wanted().items():
            loading.extend((partition, offset, key) for offset, key in sorted(wanted.items()))
        most = max(most, lanes.payload_bytes + size * len(loading))
        while loading:
            partition, offset, key = loading.popleft()
            assert lanes.loaded(entry(key, partition, offset, size))
        most = max(most, lanes.payload_bytes)
        key = next(key for key, lane in lanes._lanes.items() if lane.waiting)
        lanes.take(key)
        left -= 1
    assert most <= budget + size


def test_a_revoked_partition_leaves_nothing_behind() -> None:
    lanes = Lanes(window=2)
    ours, theirs = Partition("jobs", 0, is_retry=False), Partition("jobs", 1, is_retry=False)
    for offset in range(5):
        lanes.add(entry(NOISY, theirs, offset))
    lanes.add(entry(QUIET, ours, 0))
    lanes.take(NOISY)
    lanes.take(NOISY)
    wanted = lanes.wanted()
    theirs.active = False
    assert lanes.drop_inactive() == {}
    assert not lanes.loaded(entry(NOISY, theirs, min(wanted[theirs])))
    lanes.gone(NOISY, theirs)
    assert lanes.parked == 0
    assert lanes.take(QUIET).offset == 0
    assert lanes.payload_bytes == 0


@settings(deadline=None, derandomize=True)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["add", "take", "load"]), st.integers(0, 3)), max_size=200),
)
def test_order_per_key_and_counts_hold_for_any_sequence(window: int, steps: list[tuple[str, int]]) -> None:
    lanes, partition = Lanes(window=window), Partition("jobs", 0, is_retry=False)
    expected: dict[Key, deque[int]] = {}
    in_memory: dict[Key, int] = {}
    offset = 0
    for step, sender in steps:
        key = Key("acme", str(sender))
        if step == "add":
            in_memory[key] = in_memory.get(key, 0) + lanes.add(entry(key, partition, offset))
            expected.setdefault(key, deque()).append(offset)
            offset += 1
        elif step == "take" and in_memory.get(key):
            assert lanes.take(key).offset == expected[key].popleft()
            in_memory[key] -= 1
        elif step == "load":
            for place, wanted in lanes.wanted().items():
                for at in sorted(wanted):
                    assert lanes.loaded(entry(wanted[at], place, at))
                    in_memory[wanted[at]] += 1
        assert lanes.payload_bytes == 100 * sum(in_memory.values())
        assert lanes.parked == sum(map(len, expected.values())) - sum(in_memory.values())
        assert all(count <= window for count in in_memory.values())
    while any(expected.values()):
        for place, wanted in lanes.wanted().items():
            for at in sorted(wanted):
                lanes.loaded(entry(wanted[at], place, at))
                in_memory[wanted[at]] += 1
        ready = [key for key, count in in_memory.items() if count]
        assert ready, "a lane with parked records is always fed in the end"
        for key in ready:
            assert lanes.take(key).offset == expected[key].popleft()
            in_memory[key] -= 1


def test_a_record_known_by_its_place_alone_is_read_again_in_its_turn() -> None:
    lanes, partition = Lanes(window=4), Partition("jobs.retry", 0, is_retry=True)
    for offset in (7, 3, 5):
        lanes.park(NOISY, partition, offset)
    assert (lanes.parked, lanes.payload_bytes, lanes.hungry) == (3, 0, True)
    assert lanes.wanted() == {partition: {3: NOISY, 5: NOISY, 7: NOISY}}
    for offset in (3, 5, 7):
        assert lanes.loaded(entry(NOISY, partition, offset))
    assert [lanes.take(NOISY).offset for _ in range(3)] == [3, 5, 7]
    assert lanes.parked == 0
