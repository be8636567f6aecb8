"""The audit finds what it is there to find: each fault of a queue is planted once."""

import pytest

from tests.chaos import audit
from tests.chaos.audit import Findings, Stall, Wait
from tests.chaos.records import Effect, Ended, Fault, Kind, Planned, Started, Strike


def job(name: str, number: int, key: str = "acme:a", *, killer: bool = False, failures: int = 0) -> Planned:
    return Planned(name, "ordered", key, number, 0.0, killer, failures)


def started(name: str, at: float, pid: int = 1, attempt: int = 1) -> Started:
    return Started("ordered", name, attempt, pid, at)


def ended(name: str, at: float, pid: int = 1, attempt: int = 1) -> Ended:
    return Ended("ordered", name, attempt, pid, at, "done")


def strike(number: int, kind: Kind, at: float, pid: int = 1, back: float | None = None) -> Strike:
    return Strike(Fault(number, kind, 0.5), "somebody", pid, at, at, at + 2.0 if back is None else back)


def test_a_job_without_an_effect_is_lost_and_a_killer_without_a_dead_letter() -> None:
    jobs = [job("a", 1), job("b", 2), job("c", 3, killer=True), job("d", 4, killer=True)]
    assert audit.lost(jobs, [Effect("a", 1, 0.0)], {"c"}) == ["b (ordered, number 2)", "d (ordered, number 4)"]


def test_two_effects_of_a_job_are_found() -> None:
    assert audit.twice([Effect("a", 1, 0.0), Effect("b", 2, 0.0), Effect("a", 3, 0.0)]) == ["a: 2 effects"]


def test_order_is_judged_by_key_and_by_what_was_handed_in_first() -> None:
    jobs = [job("a", 1), job("b", 2), job("c", 3, "acme:c")]
    assert audit.out_of_order(jobs, [Effect("c", 1, 0), Effect("a", 2, 0), Effect("b", 3, 0)], "ordered") == []
    swapped = [Effect("b", 1, 0), Effect("c", 2, 0), Effect("a", 3, 0)]
    assert audit.out_of_order(jobs, swapped, "ordered") == ["a: number 1 of acme:a came after 2"]
    assert audit.out_of_order(jobs, swapped, "another") == []


def test_an_attempt_beyond_the_told_failures_was_charged_for_something_else() -> None:
    jobs = [job("a", 1), job("b", 2, failures=1)]
    starts = [started("a", 1.0), started("b", 1.0), started("b", 2.0, attempt=2)]
    assert audit.charged(jobs, starts) == []
    assert audit.charged(jobs, [*starts, started("a", 3.0, attempt=2)]) == ["a: attempt 2"]


def test_a_run_is_over_at_its_end_at_its_process_s_death_or_never() -> None:
    starts = [started("a", 1.0), started("b", 2.0, pid=2), started("c", 3.0, pid=3)]
    over = audit.intervals(starts, [ended("a", 1.5)], {2: 2.5}, until=9.0)
    assert [(end, how) for _, end, how in over] == [(1.5, "done"), (2.5, "died"), (9.0, "running")]


def test_more_at_once_than_the_total_is_found_in_one_process_only() -> None:
    starts = [started("a", 1.0), started("b", 1.1), started("c", 1.2, pid=2)]
    over = audit.intervals(starts, [ended("a", 1.5), ended("b", 1.6), ended("c", 1.7, pid=2)], {}, 9.0)
    assert audit.above_total(over, {"ordered": 2}) == []
    assert audit.above_total(over, {"ordered": 1}) == ["ordered of process 1: 2 at once at 1.100"]


def test_two_jobs_of_one_key_at_once_are_found_unless_one_was_frozen() -> None:
    starts = [started("a", 1.0), started("b", 1.2, pid=2)]
    over = audit.intervals(starts, [ended("a", 1.5), ended("b", 1.6, pid=2)], {}, 9.0)
    keys = {"a": "acme:a", "b": "acme:a"}
    assert audit.overlapping(over, keys, set()) == ["b of acme:a started while a ran"]
    assert audit.overlapping(over, keys, {1}) == []
    assert audit.overlapping(over, keys | {"b": "acme:b"}, set()) == []


def test_a_stall_needs_work_that_waits_and_ends_with_a_start() -> None:
    assert audit.longest_stall([Wait(0.0, 1.0), Wait(50.0, 51.0)], [], 60.0) == Stall(1.0, 0.0)
    assert audit.longest_stall([Wait(0.0, 1.0), Wait(0.5, 41.0)], [], 60.0) == Stall(40.0, 1.0)
    assert audit.longest_stall([Wait(0.0, 1.0), Wait(20.0, None)], [], 60.0) == Stall(40.0, 20.0)


def test_while_a_server_is_kept_down_no_stall_is_counted() -> None:
    assert audit.longest_stall([Wait(0.0, 41.0)], [(1.0, 31.0)], 60.0) == Stall(11.0, 0.0)


def test_a_run_that_started_twice_is_blamed_on_the_fault_that_struck_its_process() -> None:
    strikes = [strike(1, "worker", 2.0, pid=1), strike(2, "broker", 3.0, pid=7)]
    starts = [started("a", 1.0), started("b", 1.0, pid=2), started("a", 4.0, pid=2), started("b", 4.1, pid=2)]
    over = audit.intervals(starts, [], {}, 9.0)
    assert audit.reruns(over, strikes, set()) == {1: 1, 2: 1}
    assert audit.reruns(over, [], set()) == {0: 2}
    assert audit.reruns(over, [], {"a"}) == {audit.KILLER: 2}


def test_a_second_attempt_is_no_rerun() -> None:
    over = audit.intervals([started("a", 1.0), started("a", 2.0, attempt=2)], [], {}, 9.0)
    assert audit.reruns(over, [], set()) == {}


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        (Findings("jobs", 2, 1, lost=["a"]), "jobs: 1 lost: a"),
        (Findings("jobs", 2, 2, twice=["a: 2 effects"]), "jobs: 1 effects twice: a: 2 effects"),
        (
            Findings("jobs", 2, 2, in_all={"ordered": Stall(31.0, 5.0)}),
            "jobs: nothing started for 31.0 s although work waited (ordered)",
        ),
        (
            Findings("jobs", 2, 2, reruns={1: 11}, slots={1: 10}),
            "jobs: fault 1 made 11 runs start again, 10 were under way",
        ),
        (Findings("jobs", 2, 2, reruns={0: 1}), "jobs: fault 0 made 1 runs start again, 0 were under way"),
    ],
)
def test_a_broken_promise_is_said_in_a_line(findings: Findings, said: str) -> None:
    assert findings.broken() == [said]


def test_kept_promises_are_not_complained_about() -> None:
    kept = Findings("jobs", 2, 2, reruns={1: 10}, slots={1: 10}, in_all={"ordered": Stall(29.0, 5.0)})
    assert kept.broken() == []


def test_a_stall_while_a_server_starts_again_is_told_from_one_of_our_own() -> None:
    found = Findings("jobs", 1, 1)
    found.stall({"ordered": [Wait(0.0, 50.0)]}, [strike(1, "broker", 5.0, back=45.0)], 60.0)
    assert (found.stalls["ordered"].seconds, found.in_all["ordered"].seconds) == (10.0, 50.0)
    assert found.broken(quick_servers=False) == []
    assert len(found.broken()) == 1
