"""The gate: what holds all starts, and for how long."""

import pytest

from messaging.gate import FIRST_PAUSE, LONGEST_PAUSE, Gate


def test_an_open_gate_opens_at_once() -> None:
    assert Gate().opens_in(5.0) == 0.0


def test_an_outage_is_probed_ever_more_rarely_and_forgotten_after_a_success() -> None:
    gate, now, pauses = Gate(), 0.0, []
    for _ in range(7):
        pauses.append(gate.pause("database", now))
        now += gate.opens_in(now)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, LONGEST_PAUSE, LONGEST_PAUSE]
    gate.passed()
    assert gate.pause("database", now) == FIRST_PAUSE


def test_ten_jobs_that_meet_the_same_outage_pause_once() -> None:
    gate = Gate()
    assert [gate.pause("registry", 1.0 + n / 100) for n in range(10)] == [
        pytest.approx(FIRST_PAUSE - n / 100) for n in range(10)
    ]
    assert gate.opens_in(1.0) == FIRST_PAUSE


def test_the_longest_retry_after_counts_and_resources_are_kept_apart() -> None:
    gate = Gate()
    gate.wait("provider", 3.0, now=0.0)
    gate.wait("provider", 1.0, now=0.5)
    gate.pause("database", now=0.0)
    assert gate.opens_in(0.0) == 3.0
    assert gate.holders() == ["database", "provider"]
    assert gate.opens_in(2.0) == 1.0
    assert gate.holders() == ["provider"]
    assert gate.opens_in(3.0) == 0.0
