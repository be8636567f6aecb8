"""Pure: offsets follow one another, or somebody is told."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from messaging import telemetry
from services.analytics.counting import Place, Value, progress
from services.analytics.gaps import Gaps, JumpedOver, resume_at

TOPIC = "t"


@dataclass
class Kafka:
    """One partition: its first offset, those that hold a record for us, and what the group committed."""

    committed_at: int = 0
    begins: int = 0
    records: frozenset[int] = frozenset(range(100))
    passed_over: list[tuple[int, int]] = field(default_factory=list)

    async def first(self, topic: str, partition: int) -> int:
        return self.begins

    async def committed(self, topic: str, partition: int) -> int:
        return self.committed_at

    async def between(self, topic: str, partition: int, since: int, until: int) -> int | None:
        there = max(since, self.begins)
        return min((offset for offset in self.records if there <= offset < until), default=None)

    def passed(self, topic: str, partition: int, since: int, until: int) -> None:
        self.passed_over.append((since, until))


def gaps(
    *, settled: int | None = None, committed: int = 0, first: int = 0, records: Iterable[int] = range(100)
) -> Gaps:
    return watching(Kafka(committed, first, frozenset(records)), settled)


def watching(kafka: Kafka, settled: int | None = None) -> Gaps:
    table: dict[str, Value] = {} if settled is None else {progress(TOPIC, 0): {"o": settled}}
    return Gaps(table.get, kafka)


def counted(metric: Any) -> float:
    return float(metric.labels(TOPIC)._value.get())


async def watch(watched: Gaps, *offsets: int) -> None:
    for offset in offsets:
        await watched.watch(Place(TOPIC, 0, offset))


async def test_one_after_the_other_is_well_and_so_is_what_comes_again() -> None:
    await watch(gaps(), 0, 1, 2)
    await watch(gaps(settled=9, committed=10), 10, 11)
    # Behind what was settled: read again after a crash. Anew after a rebalance, too.
    watched = gaps(settled=9, committed=7)
    await watch(watched, 7, 8, 9, 10)
    await watch(watched, 8, 9, 10, 11)


@pytest.mark.parametrize(
    ("watched", "offsets"),
    [
        (gaps(), (0, 2)),
        (gaps(settled=9, committed=10), (11,)),
        (gaps(settled=9, committed=12), (12,)),
        (gaps(committed=3), (4,)),
        (gaps(settled=9, first=10), (10, 12)),
        (gaps(settled=9, first=11), (12,)),
    ],
)
async def test_what_is_jumped_over_is_an_error(watched: Gaps, offsets: tuple[int, ...]) -> None:
    with pytest.raises(JumpedOver, match=f"to {offsets[-1]}"):
        await watch(watched, *offsets)


async def test_what_kafka_has_deleted_is_no_jump() -> None:
    await watch(gaps(settled=9, first=15), 15, 16)
    await watch(gaps(first=15), 15, 16)


async def test_what_nobody_is_given_is_passed_over_and_counted() -> None:
    """The mark of a transaction, and one that took three events back."""
    empty, expired = counted(telemetry.OFFSETS_EMPTY), counted(telemetry.EVENTS_EXPIRED)
    kafka = Kafka(records=frozenset({0, 2, 7, 8}))
    await watch(watching(kafka), 0, 2, 7, 8)
    assert kafka.passed_over == [(1, 2), (3, 7)]
    assert counted(telemetry.OFFSETS_EMPTY) == empty + 5
    # The first of these has gone by its time; of those that are left none holds a record.
    later = Kafka(committed_at=10, begins=11, records=frozenset({10, 13}))
    await watch(watching(later, settled=9), 13)
    assert later.passed_over == [(10, 13)]
    assert (counted(telemetry.OFFSETS_EMPTY), counted(telemetry.EVENTS_EXPIRED)) == (empty + 7, expired + 1)


async def test_what_was_settled_and_not_committed_is_passed_over_as_well() -> None:
    """Its process was killed before it committed, and Kafka has deleted it since."""
    kafka = Kafka(committed_at=5, begins=10)
    await watch(watching(kafka, settled=9), 10, 11)
    assert kafka.passed_over == [(5, 10)]


async def test_what_is_deleted_between_two_questions_is_told_as_deleted() -> None:
    @dataclass
    class Ageing(Kafka):
        async def between(self, topic: str, partition: int, since: int, until: int) -> int | None:
            self.begins = 15
            return await super().between(topic, partition, since, until)

    empty, expired = counted(telemetry.OFFSETS_EMPTY), counted(telemetry.EVENTS_EXPIRED)
    await watch(watching(Ageing(), settled=9), 15)
    assert (counted(telemetry.OFFSETS_EMPTY), counted(telemetry.EVENTS_EXPIRED)) == (empty, expired + 5)


async def test_one_event_among_what_nobody_is_given_is_missed() -> None:
    with pytest.raises(JumpedOver, match="went from 0 to 7, though there is an event at 4"):
        await watch(gaps(records={0, 4, 7}), 0, 7)


async def test_after_a_reset_the_table_is_asked_anew() -> None:
    watched = gaps(settled=4)
    await watch(watched, 5, 6)
    watched.reset()
    with pytest.raises(JumpedOver):
        await watch(watched, 7)


@pytest.mark.parametrize(
    ("last", "committed", "first", "at"), [(4, 7, 0, 5), (4, 7, 6, 6), (4, 7, 9, 7), (4, 5, 0, 5)]
)
def test_what_was_committed_over_is_read_again_as_far_as_kafka_has_it(
    last: int, committed: int, first: int, at: int
) -> None:
    assert resume_at(last, committed, first) == at
