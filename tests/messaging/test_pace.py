"""How long the relay waits between two reads."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.pace import BUSY_RATE, POLL_BUSY_MAX, POLL_MIN, Pace


def reads(rate: float, seconds: float, pace: Pace, now: float) -> tuple[int, float]:
    """How many reads rows that come evenly cause, the last wait."""
    count, carried, wait = 0, 0.0, POLL_MIN
    ends = now + seconds
    while now < ends:
        carried += rate * wait
        rows = int(carried)
        carried -= rows
        wait = pace.after(rows, now)
        now += wait
        count += 1
    return count, wait


@pytest.mark.parametrize(
    ("rate", "wait"), [(0, 0.002), (400, 0.002), (600, 0.03), (1000, 0.05), (2000, 0.1), (50_000, 0.1)]
)
def test_the_wait_grows_with_the_rate_up_to_a_tenth_of_a_second(rate: float, wait: float) -> None:
    assert reads(rate, 5.0, Pace(0.0), 0.0)[1] == pytest.approx(wait, rel=0.1)


def test_when_many_have_come_and_no_more_do_it_is_quick_again_at_once() -> None:
    pace = Pace(0.0)
    reads(5000, 2.0, pace, 0.0)
    assert pace.after(0, 2.2) == POLL_MIN


def test_many_rows_of_one_transaction_are_no_flood() -> None:
    """What is written after them leaves at once."""
    pace, now = Pace(0.0), 0.0
    for rows in (0, 5_000, *(0 for _ in range(50))):
        now += POLL_MIN
        assert pace.after(rows, now) == POLL_MIN


@pytest.mark.parametrize("since", [0.003, 0.025, 0.25, 100.0])
def test_rows_that_wake_a_sleeper_are_no_flood(since: float) -> None:
    """Asleep it looks seldom, so what it finds then says nothing of what comes next."""
    pace = Pace(0.0)
    assert pace.after(0, 1.0) == POLL_MIN
    assert pace.after(64, 1.0 + since) == POLL_MIN


@pytest.mark.parametrize(("rate", "lump"), [(1000, 8), (1500, 20), (2000, 20), (3000, 10)])
def test_a_flood_that_comes_in_lumps_is_one(rate: int, lump: int) -> None:
    """As from a service that writes what comes at once in one transaction: most quick reads find nothing."""
    chance, pace, now, waits = random.Random(1), Pace(0.0), 0.0, []
    due = chance.expovariate(rate / lump)
    while now < 20.0:
        rows = 0
        while due <= now:
            rows += lump
            due += chance.expovariate(rate / lump)
        wait = pace.after(rows, now)
        waits.append(wait)
        now += wait
    assert sum(wait for wait in waits if wait > POLL_MIN) > 0.9 * sum(waits)


def test_a_flood_is_noticed_before_it_has_cost_many_reads() -> None:
    assert reads(3000, 0.1, Pace(0.0), 0.0)[0] < 20


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.0, 1.0)), max_size=60))
def test_it_is_never_longer_than_the_longest_and_never_shorter_than_the_shortest(
    comes: list[tuple[int, float]],
) -> None:
    pace, now = Pace(0.0), 0.0
    for rows, later in comes:
        now += later
        wait = pace.after(rows, now)
        assert wait == POLL_MIN or BUSY_RATE * 5e-5 <= wait <= POLL_BUSY_MAX
