"""The yardstick itself: cases worked out by hand, and bounds that no schedule can beat."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.ideal import Job, Played, done_at, simulate


def jobs(sender: str, count: int, seconds: float = 1.0, arrival: float = 0.0) -> list[Job]:
    return [Job(sender, arrival, ((0.0, seconds),)) for _ in range(count)]


def test_one_sender_alone_borrows_every_slot() -> None:
    played = simulate(jobs("a", 20), per_sender=2, total=10)
    assert done_at(played, ["a"]) == 2.0
    assert [run.lent for run in played] == [False, False] + [True] * 8 + [False, False] + [True] * 8


def test_without_lending_the_guarantee_is_a_cap() -> None:
    played = simulate(jobs("a", 20), per_sender=2, total=10, lend=False)
    assert done_at(played, ["a"]) == 10.0
    assert not any(run.lent for run in played)


def test_a_quiet_sender_waits_for_one_slot_and_then_gets_its_guarantee() -> None:
    """Ten loans run until 1.0; quiet comes at 0.5 and takes the first two slots that come free."""
    played = simulate(jobs("noisy", 100) + jobs("quiet", 4, arrival=0.5), per_sender=2, total=10)
    assert [run.started_at for run in played if run.sender == "quiet"] == [1.0, 1.0, 1.0, 1.0]
    assert done_at(played, ["quiet"]) == 2.0


def test_five_senders_share_ten_slots_two_by_two() -> None:
    """By hand: 2 slots each while all have work; the four others' 50 jobs of 1 s take 25 s of their 2 slots."""
    others = [job for sender in "abcd" for job in jobs(sender, 50)]
    played = simulate(jobs("noisy", 200) + others, per_sender=2, total=10)
    assert done_at(played, list("abcd")) == 25.0
    assert done_at(played, ["noisy"]) == 40.0
    assert not any(run.lent for run in played if run.started_at < 24.9)


def test_a_loan_is_never_taken_back() -> None:
    played = simulate(jobs("noisy", 10, 5.0) + jobs("quiet", 1, arrival=1.0), per_sender=2, total=10)
    assert [run.started_at for run in played if run.sender == "quiet"] == [5.0]


def test_a_free_slot_is_lent_to_the_sender_with_the_fewest_running() -> None:
    """Three slots, one each guaranteed to a and b; the third is lent to whoever has used less: b, then a by turns."""
    played = simulate(jobs("a", 6) + jobs("b", 6), per_sender=1, total=3)
    assert done_at(played, ["a", "b"]) == 4.0
    used: dict[str, int] = defaultdict(int)
    for run in played:
        used[run.sender] += 1
        assert abs(used["a"] - used["b"]) <= 2


def test_a_retry_holds_no_slot_while_it_waits() -> None:
    retried = Job("a", 0.0, ((0.0, 1.0), (3.0, 1.0)))
    played = simulate([retried, *jobs("a", 3)], per_sender=1, total=1)
    assert sorted((run.started_at, run.job) for run in played) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0)]
    assert done_at(played, ["a"]) == 5.0


def test_idleness_earns_no_credit() -> None:
    """b slept while a used 20 s of slots. Having woken up, it shares the loans evenly instead of catching up."""
    played = simulate(jobs("a", 40) + jobs("c", 40) + jobs("b", 20, arrival=5.0), per_sender=1, total=6)
    after = [run for run in played if 6.0 <= run.started_at < 10.0]
    counts = {sender: sum(run.sender == sender for run in after) for sender in "abc"}
    assert counts == {"a": 8, "b": 8, "c": 8}


job_lists = st.lists(
    st.builds(
        Job,
        st.sampled_from("abcde"),
        st.floats(0, 20),
        st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 4)), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(job_lists, st.integers(1, 4), st.integers(0, 8), st.booleans())
def test_no_schedule_beats_its_bounds(given_jobs: list[Job], per_sender: int, more: int, lend: bool) -> None:
    total = per_sender + more
    played = simulate(given_jobs, per_sender=per_sender, total=total, lend=lend)
    assert len(played) == sum(len(job.runs) for job in given_jobs)
    first = min(job.arrival for job in given_jobs)
    for senders in [[sender] for sender in "abcde"] + [list("abcde")]:
        own = [job for job in given_jobs if job.sender in senders]
        if own:
            work = sum(seconds for job in own for _, seconds in job.runs)
            slots = total if lend else min(total, per_sender * len({job.sender for job in own}))
            done = done_at(played, senders)
            assert done >= min(job.arrival for job in own) + work / slots - 1e-6
            assert done >= max(job.arrival + sum(map(sum, job.runs)) for job in own) - 1e-6
            assert done >= first
    check_slots(played, per_sender, total, lend)


def check_slots(played: list[Played], per_sender: int, total: int, lend: bool) -> None:
    """The schedule obeys the rules at every start, counted by brute force."""
    for position, run in enumerate(played):
        earlier = [other for other in played[:position] if other.finished_at > run.started_at]
        assert len(earlier) < total
        own = sum(other.sender == run.sender for other in earlier)
        assert run.lent == (own >= per_sender)
        assert lend or not run.lent


@settings(max_examples=100, deadline=None)
@given(job_lists, st.integers(1, 3), st.integers(0, 6))
def test_work_never_waits_beside_a_free_slot(given_jobs: list[Job], per_sender: int, more: int) -> None:
    """With lending, at every start after the run became ready, all slots were taken since it was ready."""
    total = per_sender + more
    single = [Job(job.sender, job.arrival, job.runs[:1]) for job in given_jobs]
    played = simulate(single, per_sender=per_sender, total=total)
    for run in played:
        job = single[run.job]
        ready = job.arrival + job.runs[0][0]
        assert run.started_at >= ready
        if run.started_at > ready:
            moments = [ready, *(other.finished_at for other in played if ready < other.finished_at < run.started_at)]
            for moment in moments:
                running = sum(other.started_at <= moment < other.finished_at for other in played)
                assert running == total


def test_asking_for_a_sender_without_jobs_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        done_at(simulate(jobs("a", 1), per_sender=1, total=1), ["b"])
