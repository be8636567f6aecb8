"""Pure: offsets follow one another, or somebody is told."""

import pytest

from services.analytics.counting import Place, Value, progress
from services.analytics.gaps import Gaps, JumpedOver, resume_at

TOPIC = "t"


def gaps(*, settled: int | None = None, committed: int = 0, first: int = 0) -> Gaps:
    table: dict[str, Value] = {} if settled is None else {progress(TOPIC, 0): {"o": settled}}

    async def say_first(topic: str, partition: int) -> int:
        return first

    async def say_committed(topic: str, partition: int) -> int:
        return committed

    return Gaps(table.get, say_first, say_committed)


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
