"""How far a partition may be committed: against a naive model, and at a million records."""

import random
import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from messaging.offsets import BLOCK, PartitionOffsets


class AnyInterleaving(RuleBasedStateMachine):
    """Reads, ends, repeats and commits in any order, with gaps, beside two plain sets."""

    @initialize(first=st.one_of(st.integers(0, 5), st.integers(BLOCK - 8, BLOCK + 8), st.integers(0, 2**62)))
    def begin(self, first: int) -> None:
        self.offsets = PartitionOffsets()
        self.next = first
        self.seen: list[int] = []
        self.done: set[int] = set()
        self.stored: int | None = None
        self.positions: list[int] = []

    @rule(gap=st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 3 * BLOCK)), records=st.integers(1, 8))
    def read(self, gap: int, records: int) -> None:
        # Compacted records and transaction markers take numbers that no record has.
        self.next += gap
        for _ in range(records):
            assert self.offsets.seen(self.next)
            self.seen.append(self.next)
            self.next += 1

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def read_again(self, data: st.DataObject) -> None:
        assert not self.offsets.seen(data.draw(st.sampled_from(self.seen)))

    @precondition(lambda self: len(self.done) < len(self.seen))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from([offset for offset in self.seen if offset not in self.done]))
        assert self.offsets.finished(offset)
        self.done.add(offset)

    @precondition(lambda self: len(self.done) < len(self.seen))
    @rule()
    def finish_the_first(self) -> None:
        offset = next(offset for offset in self.seen if offset not in self.done)
        assert self.offsets.finished(offset)
        self.done.add(offset)

    @rule(offset=st.integers(-1, 200))
    def finish_what_is_not_pending(self, offset: int) -> None:
        if offset in self.done or offset not in self.seen:
            assert not self.offsets.finished(offset)

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def finish_twice(self, data: st.DataObject) -> None:
        assert not self.offsets.finished(data.draw(st.sampled_from(sorted(self.done))))

    @rule()
    def commit(self) -> None:
        offset = self.offsets.committable()
        if offset is not None:
            self.offsets.committed(offset)
            self.stored = offset

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "seen"):
            return
        pending = [offset for offset in self.seen if offset not in self.done]
        position = min(pending, default=self.seen[-1] + 1 if self.seen else None)
        expected = None if position == self.stored else position
        assert self.offsets.committable() == expected
        assert self.offsets.pending == len(pending)
        assert self.offsets.stored == self.stored
        if position is not None:
            self.positions.append(position)
            assert self.positions == sorted(self.positions), "a commit went back"


AnyInterleaving.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyInterleaving = AnyInterleaving.TestCase


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True)
def test_whatever_the_order_only_the_last_end_commits_all(steps: list[int], rng: random.Random) -> None:
    offsets, numbers = PartitionOffsets(), [sum(steps[: index + 1]) for index in range(len(steps))]
    for number in numbers:
        offsets.seen(number)
    order = rng.sample(numbers, len(numbers))
    for index, number in enumerate(order):
        left = order[index + 1 :]
        offsets.finished(number)
        assert offsets.committable() == min(left, default=numbers[-1] + 1)


def test_nothing_is_committed_before_anything_was_seen_nor_twice() -> None:
    offsets = PartitionOffsets()
    assert offsets.committable() is None
    assert not offsets.finished(0)
    offsets.seen(7)
    assert offsets.committable() == 7, "where this process began, which holds back nothing"
    offsets.committed(7)
    assert offsets.committable() is None
    offsets.finished(7)
    assert offsets.committable() == 8
    offsets.committed(8)
    assert offsets.committable() is None
    offsets.seen(11)
    assert offsets.committable() == 11, "8 to 10 belong to no record"


def runs(offsets: PartitionOffsets) -> int:
    return len(offsets._seen) + len(offsets._finished)


def test_a_million_in_a_row_cost_as_little_parked_as_finished() -> None:
    offsets, few = PartitionOffsets(), 2 * (1_000_000 // BLOCK + 2)
    for offset in range(1_000_000):
        offsets.seen(offset)
    assert runs(offsets) <= few
    for offset in range(1, 1_000_000):
        offsets.finished(offset)
    assert (offsets.committable(), offsets.pending) == (0, 1)
    assert runs(offsets) <= few
    offsets.finished(0)
    assert (offsets.committable(), runs(offsets)) == (1_000_000, 0)


def in_order(count: int) -> Iterable[int]:
    return range(count)


def backwards(count: int) -> Iterable[int]:
    return range(count - 1, -1, -1)


def one_of_two_senders_first(count: int) -> Iterable[int]:
    yield from range(0, count, 2)
    yield from range(1, count, 2)


def nearly_in_order(count: int) -> Iterable[int]:
    rng = random.Random(1)
    return sorted(range(count), key=lambda offset: offset + rng.uniform(0, 500))


ORDERS = [in_order, backwards, one_of_two_senders_first, nearly_in_order]


def seconds(count: int, spacing: int, order: Callable[[int], Iterable[int]]) -> float:
    offsets, ends = PartitionOffsets(), list(order(count))
    began = time.process_time()
    for number in range(count):
        offsets.seen(number * spacing)
    for number in ends:
        offsets.finished(number * spacing)
    took = time.process_time() - began
    assert (offsets.committable(), offsets.pending) == ((count - 1) * spacing + 1, 0)
    return took


@pytest.mark.parametrize(
    ("count", "spacing", "order"),
    [(1_000_000, 1, in_order)] + [(100_000, spacing, order) for spacing in (1, 2) for order in ORDERS],
)
def test_ten_times_the_records_take_about_ten_times_the_time(
    count: int, spacing: int, order: Callable[[int], Iterable[int]]
) -> None:
    few, many = seconds(count // 10, spacing, order), seconds(count, spacing, order)
    print(f"{order.__name__}, every {spacing}.: {count} in {many:.2f} s, a tenth in {few:.3f} s")
    assert many <= 30 * few
