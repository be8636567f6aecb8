"""Which parked records the next pass over a partition is for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.entries import Entry, Partition
from messaging.lanes import Lanes
from messaging.message import Key
from messaging.refill import LEAST, shares
from tests.messaging.test_lanes import Record


def key(number: int) -> Key:
    return Key("acme", str(number))


def test_one_sender_alone_gets_all_it_has_room_for() -> None:
    assert shares({key(0): (range(1000, 5000), 150)}, [key(0)], 2000) == {key(0): 150}


def test_senders_whose_records_are_mixed_are_filled_up_in_one_stretch() -> None:
    lanes = {key(sender): (range(sender, 10_000, 5), 150 if sender == 0 else 100) for sender in range(5)}
    counts = shares(lanes, [key(0)], 2000)
    assert counts == {key(0): 150, **{key(sender): 100 for sender in range(1, 5)}}


def test_of_very_many_each_gets_a_few_and_the_stretch_stays_short() -> None:
    lanes = {key(sender): (range(sender, 1_000_000, 1000), 150) for sender in range(1000)}
    counts = shares(lanes, [key(0), key(1)], 2000)
    last = max(lanes[who][0][count - 1] for who, count in counts.items() if who not in (key(0), key(1)))
    assert last < 2000
    assert counts[key(0)] >= LEAST


def test_one_far_ahead_gets_some_in_each_pass() -> None:
    lanes = {key(0): (range(10_000), 5000), key(1): (range(1_000_000, 1_001_000), 150)}
    assert shares(lanes, [key(0), key(1)], 2000) == {key(0): 2000 - LEAST, key(1): LEAST}


def test_who_lies_behind_and_does_not_run_low_waits_for_its_own_pass() -> None:
    lanes = {key(0): (range(500, 600), 10), key(1): (range(0, 1000, 7), 10)}
    assert key(1) not in shares(lanes, [key(0)], 2000)


@settings(deadline=None, derandomize=True)
@given(st.data(), st.lists(st.tuples(st.sets(st.integers(0, 500), min_size=1), st.integers(1, 20)), max_size=8))
def test_shares_fit(data: st.DataObject, drawn: list[tuple[set[int], int]]) -> None:
    lanes = {key(number): (sorted(offsets), room) for number, (offsets, room) in enumerate(drawn)}
    hungry = data.draw(st.lists(st.sampled_from([*lanes, key(99)]), unique=True))
    most = data.draw(st.integers(1, 60))
    counts = shares(lanes, hungry, most)
    assert all(1 <= count <= min(len(lanes[who][0]), lanes[who][1]) for who, count in counts.items())
    assert sum(counts.values()) <= most
    low = [who for who in hungry if who in lanes]
    for who in low[:most]:
        assert counts[who] >= min(LEAST, most // min(most, len(low)), lanes[who][1], len(lanes[who][0]))
    if not any(who in lanes for who in hungry):
        assert counts == {}


def test_a_partition_has_one_pass_at_a_time_and_another_its_own() -> None:
    lanes, one, two = Lanes(window=8), Partition("jobs", 0, is_retry=False), Partition("jobs", 1, is_retry=False)

    def entry(who: Key, partition: Partition, offset: int) -> Entry:
        return Entry(who, partition, offset, Record(), 100, 0.0)

    for offset in range(40):
        lanes.add(entry(key(offset % 2), one, offset))
    for _ in range(8):
        lanes.take(key(0))
    assert lanes.hungry
    wanted = lanes.wanted()
    assert list(wanted[one]) == list(range(16, 32, 2)), "the other lane is full"
    assert not lanes.hungry
    for _ in range(8):
        lanes.take(key(1))
    assert not lanes.hungry, "its turn comes after this pass"
    assert lanes.wanted() == {}
    for offset in range(20):
        lanes.add(entry(key(2), two, offset))
    for _ in range(8):
        lanes.take(key(2))
    assert lanes.hungry
    assert list(lanes.wanted()) == [two]
    for offset, who in wanted[one].items():
        assert lanes.loaded(entry(who, one, offset))
    assert lanes.hungry
    assert list(lanes.wanted()[one]) == list(range(17, 33, 2))


def test_without_room_nobody_asks_again_and_again() -> None:
    lanes, partition = Lanes(window=4, budget=1000), Partition("jobs", 0, is_retry=False)
    lanes.add(Entry(key(0), partition, 0, Record(), 1000, 0.0))
    lanes.add(Entry(key(1), partition, 1, Record(), 100, 0.0))
    assert lanes.hungry
    assert lanes.wanted() == {}
    assert not lanes.hungry
    lanes.take(key(0))
    assert lanes.hungry
    assert lanes.wanted() == {partition: {1: key(1)}}


def test_a_pass_that_takes_long_does_not_keep_other_partitions_from_theirs() -> None:
    lanes, places = Lanes(window=10), [Partition("jobs", number, is_retry=False) for number in range(2)]
    for offset in range(100):
        for place in places:
            lanes.add(Entry(key(offset % 4 + 10 * place.number), place, offset, Record(), 100, 0.0))
    for sender in range(4):
        for _ in range(10):
            lanes.take(key(sender))
    assert len(lanes.wanted(most=40)[places[0]]) == 40, "all that may be on their way"
    for _ in range(10):
        lanes.take(key(10))
    assert len(lanes.wanted(most=40)[places[1]]) == 10
