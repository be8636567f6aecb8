"""A schedule is a function of its seed."""

from collections import Counter

import pytest

from tests.chaos import schedule
from tests.chaos.records import KINDS


def test_the_same_seed_gives_the_same_schedule_and_another_a_different_one() -> None:
    assert schedule.plan(7, KINDS, 40) == schedule.plan(7, KINDS, 40)
    assert schedule.plan(7, KINDS, 40) != schedule.plan(8, KINDS, 40)
    assert schedule.single(7, "freeze") == schedule.single(7, "freeze")


def test_no_kind_is_left_out() -> None:
    dealt = Counter(fault.kind for fault in schedule.plan(7, KINDS, 2 * len(KINDS)))
    assert dealt == dict.fromkeys(KINDS, 2)


def test_only_what_is_frozen_or_kept_away_lasts() -> None:
    faults = schedule.plan(7, KINDS, 40)
    lasting = {fault.kind for fault in faults if fault.seconds}
    assert lasting == {kind for kind in KINDS if kind == "freeze" or kind.endswith("-away")}
    assert schedule.single(7, "freeze", 120.0)[0].seconds == 120.0
    assert schedule.single(7, "worker", 120.0)[0].seconds == 0.0


def test_the_first_fault_is_nobodys_twin_and_some_are() -> None:
    plans = [schedule.plan(seed, KINDS, 20) for seed in range(20)]
    assert not any(plan[0].twin for plan in plans)
    assert any(fault.twin for plan in plans for fault in plan)


def test_a_schedule_needs_a_kind() -> None:
    with pytest.raises(ValueError, match="at least one kind"):
        schedule.plan(7, (), 1)


def test_a_single_fault_strikes_between_the_shares_it_is_given() -> None:
    shares = [schedule.single(seed, "worker", share=(0.1, 0.2))[0].share for seed in range(20)]
    assert all(0.1 <= share <= 0.2 for share in shares)
    assert len(set(shares)) > 1
