"""How long a dead child waits."""

from hypothesis import given
from hypothesis import strategies as st

from stack.backoff import Restart

RESTART = Restart(base=0.5, cap=30.0, healthy=30.0)


def test_each_death_in_a_row_doubles_the_wait_up_to_the_cap() -> None:
    assert [RESTART.delay(failures) for failures in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_healthy_run_forgives_what_came_before() -> None:
    assert RESTART.failures(5, ran=29.9) == 6
    assert RESTART.failures(5, ran=30.0) == 1


@given(st.integers(min_value=1, max_value=10**9))
def test_the_wait_is_never_above_the_cap(failures: int) -> None:
    assert 0.5 <= RESTART.delay(failures) <= 30.0
