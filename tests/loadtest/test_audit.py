"""The audit catches each violation in records made by hand, and accuses nobody of what the rules allow."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest import audit
from loadtest.ideal import Job, simulate
from loadtest.records import Run

POLICY = {"per_sender": 2, "total": 4, "lend": True}


def run(
    document: str, sender: str, ready: float, start: float, stop: float, attempt: int = 1, lent: bool = False
) -> Run:
    return Run(document, sender, attempt, ready, start, stop, "done", lent)


def rules(runs: list[Run], **policy: object) -> list[str]:
    return [violation.rule for violation in audit.violations(runs, **{**POLICY, **policy})]  # type: ignore[arg-type]


def test_an_orderly_record_has_no_violation() -> None:
    noisy = [run(f"n{n}", "noisy", 0, 0, 1) for n in range(4)]
    quiet = [run(f"q{n}", "quiet", 0.5, 1, 2) for n in range(2)]
    assert rules([*noisy, *quiet, run("n5", "noisy", 0, 1, 2), run("n6", "noisy", 0, 1, 2)]) == []


def test_a_loan_while_somebody_under_the_guarantee_waits() -> None:
    runs = [run("n1", "noisy", 0, 0, 5), run("n2", "noisy", 0, 0, 5), run("n3", "noisy", 0, 1, 5)]
    waiting = run("q1", "quiet", 0.5, 2, 3)
    assert rules([*runs, waiting]) == ["lent_while_guaranteed_waited"]
    # Not owed a slot: it was not ready yet, or had its guarantee running.
    assert rules([*runs, run("q1", "quiet", 1.5, 2, 3)]) == []
    assert rules([*runs[:2], run("q2", "quiet", 0, 0, 2), run("q3", "quiet", 0, 0, 2), waiting]) == []


def test_a_violation_tells_when_whose_and_why() -> None:
    runs = [run("n1", "noisy", 0, 0, 5), run("n2", "noisy", 0, 0, 5), run("n3", "noisy", 0, 1, 5)]
    (found,) = audit.violations([*runs, run("q1", "quiet", 0.5, 2, 3)], per_sender=2, total=4, lend=True)
    assert (found.at, found.document, found.sender) == (1, "n3", "noisy")
    assert found.detail == "2 already ran while quiet waited under its guarantee"


def test_more_than_the_total() -> None:
    runs = [run(f"{n}", f"s{n}", 0, 0, 2) for n in range(5)]
    assert rules(runs) == ["over_total"]
    staggered = [run(f"{n}", f"s{n}", 0, n * 0.0002, 2) for n in range(6)]
    assert rules(staggered) == ["over_total", "over_total"]
    handed_on = [*runs[:4], run("5", "s5", 0, 2, 3)]
    assert rules(handed_on) == []


def test_a_strict_cap_is_broken_by_any_start_above_it() -> None:
    runs = [run(f"n{n}", "noisy", 0, 0, 1) for n in range(3)]
    assert rules(runs, lend=False) == ["above_strict_cap"]
    assert rules(runs[:2], lend=False) == []
    assert rules(runs) == []


def test_a_start_before_the_job_was_ready() -> None:
    assert rules([run("n1", "noisy", 1, 0.5, 2)]) == ["started_before_ready"]


def test_one_job_running_twice_at_once() -> None:
    assert rules([run("n1", "noisy", 0, 0, 2), run("n1", "noisy", 0, 1, 3, attempt=2)]) == ["ran_twice"]
    assert rules([run("n1", "noisy", 0, 0, 2), run("n1", "noisy", 2, 2, 3, attempt=2)]) == []


@pytest.mark.parametrize("late", [0.0, 0.0009])
def test_within_the_clock_tolerance_nobody_is_accused(late: float) -> None:
    full = [run(f"n{n}", "noisy", 0, 0, 1 + late) for n in range(4)]
    assert rules([*full, run("n5", "noisy", 0, 1, 2)]) == []
    loan = [run(f"n{n}", "noisy", 0, 0, 5) for n in range(2)] + [run("n3", "noisy", 0, 1, 5)]
    assert rules([*loan, run("q1", "quiet", 1 - late, 3, 4)]) == []
    assert rules([*loan, run("q1", "quiet", 0, 1 + late, 4)]) == []


def test_beyond_the_clock_tolerance_everybody_is() -> None:
    full = [run(f"n{n}", "noisy", 0, 0, 1.0021) for n in range(4)]
    assert rules([*full, run("n5", "noisy", 0, 1, 2)]) == ["over_total"]
    loan = [run(f"n{n}", "noisy", 0, 0, 5) for n in range(2)] + [run("n3", "noisy", 0, 1, 5)]
    assert rules([*loan, run("q1", "quiet", 0.997, 1.003, 4)]) == ["lent_while_guaranteed_waited"]


def test_counts_loans_by_the_stamps() -> None:
    runs = [run(f"n{n}", "noisy", 0, 0, 1) for n in range(4)] + [run("q1", "quiet", 0, 0, 1)]
    assert audit.lent_starts(runs, per_sender=2) == {"noisy": 2, "quiet": 0}


job_lists = st.lists(
    st.builds(Job, st.sampled_from("abcd"), st.floats(0, 10), st.tuples(st.tuples(st.just(0.0), st.floats(0.1, 3)))),
    min_size=1,
    max_size=50,
)


@settings(max_examples=100, deadline=None)
@given(job_lists, st.integers(1, 3), st.integers(0, 5), st.booleans())
def test_an_ideal_schedule_is_never_accused(jobs: list[Job], per_sender: int, more: int, lend: bool) -> None:
    """Two independent readings of the rules agree: what the simulation plays, the audit passes."""
    total = per_sender + more
    runs = [
        Run(
            str(played.job), played.sender, 1, jobs[played.job].arrival, played.started_at, played.finished_at, "done"
        )
        for played in simulate(jobs, per_sender=per_sender, total=total, lend=lend)
    ]
    assert audit.violations(runs, per_sender=per_sender, total=total, lend=lend) == []


@settings(max_examples=100, deadline=None)
@given(job_lists, st.integers(1, 3), st.integers(2, 5))
def test_a_schedule_for_more_slots_is_accused(jobs: list[Job], per_sender: int, more: int) -> None:
    total = per_sender + more
    runs = [
        Run(
            str(played.job), played.sender, 1, jobs[played.job].arrival, played.started_at, played.finished_at, "done"
        )
        for played in simulate(jobs, per_sender=per_sender, total=total)
    ]
    most = max(sum(r.started_at <= other.started_at < r.finished_at for r in runs) for other in runs)
    found = {violation.rule for violation in audit.violations(runs, per_sender=1, total=total - 1, lend=True)}
    assert ("over_total" in found) == (most >= total)
