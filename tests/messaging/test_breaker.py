"""When failures are everybody's: the provider's breaker and the fuse before the dead letters."""

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.breaker import JOBS, LARGEST_PART, RUNS, WINDOW, Breaker, Fuse
from messaging.database import Pool
from messaging.errors import NotRetryable, Throttled, Unavailable
from messaging.job import Job
from messaging.judge import FUSE, OWN_WAITS
from messaging.message import Key
from messaging.policy import Backoff, Policy, Subscription
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import Recording, committed, consuming, read_all, send, until

ANN, *OTHERS = (Key("acme" if n % 2 else "zeta", f"s{n}") for n in range(6))
SENDERS = [ANN, *OTHERS]


@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=60))
def test_a_breaker_is_open_exactly_after_ten_failed_runs_of_three_jobs_in_a_row(runs: list[int | None]) -> None:
    breaker, streak = Breaker(), list[int]()
    for job in runs:
        if job is None:
            breaker.passed()
            streak.clear()
        else:
            streak.append(job)
            opened = breaker.failed("provider", str(job), 0.0)
            assert opened == (len(streak) >= RUNS and len(set(streak)) >= JOBS)


def test_breakers_are_one_per_resource() -> None:
    breaker = Breaker()
    opened = [breaker.failed(("provider", "fax")[n % 2], str(n), 0.0) for n in range(2 * RUNS - 2)]
    assert not any(opened)
    assert breaker.failed("provider", "x", 0.0)


def test_an_open_breaker_charges_one_run_an_hour_so_that_the_unbearable_end() -> None:
    breaker = Breaker()
    charged = [
        second for second in range(0, 4 * 3600, 30) if not breaker.failed("provider", str(second % 90), second)
    ]
    assert charged == [*range(0, 270, 30), 270 + 3600, 270 + 7200, 270 + 10800]


@given(st.lists(st.tuples(st.sampled_from(SENDERS), st.booleans()), max_size=3 * WINDOW))
def test_a_fuse_that_blew_had_most_of_the_last_jobs_dying_and_no_one_sender_to_blame(
    jobs: list[tuple[Key, bool]],
) -> None:
    fuse, ended = Fuse(0.5), list[Key | None]()
    for key, dies in jobs:
        ended.append(key if dies else None)
        if not dies:
            fuse.passed()
            continue
        if fuse.holds("broken", key, str(len(ended)), 0.0):
            deaths = [sender for sender in ended[-WINDOW:] if sender is not None]
            assert len(deaths) > WINDOW / 2
            assert max(deaths.count(sender) for sender in set(deaths)) <= len(deaths) * LARGEST_PART
            return


def test_one_sender_never_blows_it_and_a_bad_deploy_does() -> None:
    fuse = Fuse(0.5)
    assert not any(fuse.holds("malformed_pdf", ANN, str(n), 0.0) for n in range(1000))
    fuse = Fuse(0.5)
    held = [fuse.holds("attempts_exhausted", SENDERS[n % 6], str(n), 100.0) for n in range(60)]
    assert held.index(True) == WINDOW // 2
    assert all(held[WINDOW // 2 :])
    later = [fuse.holds("attempts_exhausted", ANN, "one", 100.0 + 0.5 * tenth) for tenth in range(31)]
    assert [n for n, kept in enumerate(later) if not kept] == [10, 20, 30], "one every five seconds"
    assert not fuse.holds("another_reason", ANN, "other", 100.0)


@pytest.mark.parametrize("broken", [0.6, 0.75, 0.9])
def test_a_deploy_that_breaks_most_jobs_and_not_all_is_stopped_too(broken: float) -> None:
    fuse, rng, died = Fuse(0.5), random.Random(3), 0
    for n in range(5000):
        if rng.random() < broken:
            died += not fuse.holds("attempts_exhausted", rng.choice(SENDERS), str(n), 0.0)
        else:
            fuse.passed()
    assert died <= WINDOW


def test_mended_it_closes_and_counts_anew() -> None:
    fuse = Fuse(0.5)
    for n in range(60):
        fuse.holds("attempts_exhausted", SENDERS[n % 6], str(n), 0.0)
    successes = 0
    while fuse.holds("attempts_exhausted", ANN, "one", 0.0):
        fuse.passed()
        fuse.passed()
        fuse.passed()
        successes += 3
        assert successes < 3 * WINDOW
    assert successes >= WINDOW // 4


@pytest.mark.parametrize("senders", [2, 3])
def test_a_few_senders_with_broken_files_are_no_bad_deploy(senders: int) -> None:
    fuse = Fuse(0.5)
    assert not any(fuse.holds("malformed_pdf", SENDERS[n % senders], str(n), 0.0) for n in range(600))


def test_one_that_is_held_and_tried_again_is_one_death() -> None:
    fuse = Fuse(0.5)
    for n in range(51):
        fuse.holds("attempts_exhausted", SENDERS[n % 6], str(n), 0.0)
    successes = 0
    while fuse.holds("attempts_exhausted", SENDERS[50 % 6], "50", 0.0):
        fuse.passed()
        successes += 1
    assert successes < WINDOW, "the window empties although one is tried before each success"


def test_deaths_with_as_many_successes_between_never_blow_it() -> None:
    fuse = Fuse(0.5)
    for n in range(1000):
        assert not fuse.holds("attempts_exhausted", SENDERS[n % 6], str(n), 0.0)
        fuse.passed()


def test_different_reasons_do_not_add_up_and_a_share_of_one_turns_it_off() -> None:
    fuse = Fuse(0.5)
    assert not any(fuse.holds(f"reason-{n % 4}", SENDERS[n % 6], str(n), 0.0) for n in range(400))
    off = Fuse(1.0)
    assert not any(off.holds("same", SENDERS[n % 6], str(n), 0.0) for n in range(400))


async def test_a_provider_that_fails_everybody_for_a_while_costs_nobody_a_document(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub, away = source(), True

    async def work(job: Job) -> None:
        if away:
            raise Unavailable("The model's endpoint answered 503.", "provider")

    handler = Recording(work)
    ids = send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % 4}", {"n": n}) for n in range(40)])
    async with consuming(
        infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo
    ) as consumer:
        await until(lambda: "provider" in consumer.scheduler.gate.holders())
        # Long enough for every job to use up its four attempts, were they charged: the backoff here is 0.2 s at most.
        await until(lambda: len(handler.starts) >= 40, 60)
        assert not handler.ends
        away = False
        await until(lambda: len(handler.starts) >= 80 or consumer.scheduler.fairness.waiting == 0, 60)
        passed = [start[0] for start in handler.starts[-40:]]
        await until(lambda: consumer.scheduler.running == 0 and not len(consumer.scheduler.delayed), 60)
    assert not handler.ends
    assert set(passed) <= set(ids)
    assert {start[0] for start in handler.starts} == set(ids)
    assert max(start[1] for start in handler.starts) <= sub.backoff.attempts
    async with ledger_pool.connection() as conn:
        states = await (await conn.execute("select state, count(*) from ledger group by state")).fetchall()
    assert states == [("done", 40)]
    assert read_all(infra.kafka_bootstrap, sub.dead_letter_topic) == []


async def test_a_success_between_failures_keeps_the_breaker_shut_and_every_failure_charged(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(policy=Policy(per_key=1, total=1), backoff=Backoff(attempts=2, base=0.01, cap=0.01))
    calls = 0

    async def work(job: Job) -> None:
        nonlocal calls
        calls += 1
        if calls % RUNS:
            raise Unavailable("The model's endpoint answered 500.", "provider")

    handler, held = Recording(work), set[str]()
    send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n}", {"n": n}) for n in range(30)])
    async with consuming(
        infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo
    ) as consumer:

        def ended() -> bool:
            held.update(consumer.scheduler.gate.holders())
            return len(handler.ends) + calls // RUNS == 30

        await until(ended, 60)
    assert held == set()
    assert {start[1] for start in handler.starts} == {1, 2}
    attempts = {job: attempt for job, attempt, _ in handler.starts}
    assert len(handler.starts) == sum(attempts.values()), "a run that was not charged"


async def test_nothing_starts_after_somebody_was_told_to_wait(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    """Not even while the start that was told so is given back to a slow database."""
    sub, told = source(policy=Policy(per_key=2, total=10, lend=True)), asyncio.Event()

    async def work(job: Job) -> None:
        await asyncio.sleep(0.01)
        if len(handler.starts) <= sub.policy.total:
            told.set()
            raise Throttled("too many", 1.0)

    handler = Recording(work)
    async with consuming(
        infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo
    ) as consumer:
        send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % 20}", {"n": n}) for n in range(200)])
        await told.wait()
        first = len(handler.starts)
        await until(lambda: not consumer.scheduler.gate.holders(), what="the wait is over")
        assert first <= sub.policy.total
        await until(lambda: len(handler.starts) >= 200 + first, 60)
    early = [at for _, _, at in handler.starts if at < handler.starts[0][2] + 0.9]
    assert len(early) <= sub.policy.total
    assert max(start[1] for start in handler.starts) == 1


@pytest.mark.parametrize("senders", [1, 8])
async def test_a_bad_deploy_stops_and_goes_on_when_mended_and_one_senders_files_just_die(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database, senders: int
) -> None:
    sub, broken = source(), True

    async def work(job: Job) -> None:
        if broken:
            raise NotRetryable("'NoneType' object has no attribute 'total'", "fault")

    handler = Recording(work)
    send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % senders}", {"n": n}) for n in range(120)])
    async with consuming(
        infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo
    ) as consumer:
        if senders == 1:
            await until(lambda: len(handler.ends) == 120, 60)
            return
        await until(lambda: FUSE in consumer.scheduler.gate.holders(), 60)
        await asyncio.sleep(1.0)
        assert len(handler.ends) == WINDOW // 2
        broken = False
        await until(lambda: consumer.scheduler.fairness.waiting == 0 and consumer.scheduler.running == 0, 60)
    assert len(handler.ends) == WINDOW // 2
    async with ledger_pool.connection() as conn:
        states = await (await conn.execute("select state, count(*) from ledger group by state order by 1")).fetchall()
    assert states == [("dead", 50), ("done", 70)]


async def test_a_job_that_others_pass_by_is_held_alone_and_charged_in_the_end(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    """One document too large for the provider's rate, refused with 429 each time, must not stop everybody."""
    sub = source(backoff=Backoff(attempts=2, base=0.01, cap=0.05))

    async def work(job: Job) -> None:
        if job.key.sender == "unlucky":
            raise Throttled("Request too large for the rate.", 0.5)
        await asyncio.sleep(0.01)

    handler = Recording(work)
    send(infra.kafka_bootstrap, sub.topic, [("acme:unlucky", {})])
    send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % 8}", {"n": n}) for n in range(2000)])
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: len(handler.ends) == 1, 60, "the unlucky one comes to an end")
        await until(lambda: len(set(handler.ids())) == 2001, 60)
    unlucky = handler.ends[0][0]
    attempts = [attempt for job, attempt, _ in handler.starts if job == unlucky]
    assert attempts == [1] * (OWN_WAITS + 2) + [2]
    others = sorted(at for job, _, at in handler.starts if job != unlucky)
    long_pauses = [later - sooner for sooner, later in pairwise(others) if later - sooner > 0.4]
    assert len(long_pauses) <= 1, "everybody waits once for it, not each time"


@pytest.mark.parametrize("where", ["at the end", "while it waits", "by a child"])
async def test_a_handler_that_is_cancelled_by_a_stranger_is_tried_again_and_loses_no_slot(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database, where: str
) -> None:
    sub = source(policy=Policy(per_key=1, total=2))
    broken = True

    async def work(job: Job) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not broken or job.key.sender != "odd":
            return
        if where == "by a child":
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            task.cancel()
        if where != "at the end":
            await asyncio.sleep(5)

    handler = Recording(work)
    send(infra.kafka_bootstrap, sub.topic, [("acme:odd", {"n": n}) for n in range(6)])
    async with consuming(
        infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo
    ) as consumer:
        await until(lambda: len(handler.starts) >= 3)
        broken = False
        send(infra.kafka_bootstrap, sub.topic, [("acme:even", {"n": n}) for n in range(6)])
        await until(lambda: len({*handler.ids()}) == 12, what="the others run")
        await until(lambda: consumer.scheduler.running == 0 and not len(consumer.scheduler.delayed))
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 12, what="the commit reaches the end")
    async with ledger_pool.connection() as conn:
        states = await (await conn.execute("select state, count(*) from ledger group by state")).fetchall()
    assert states == [("done", 12)]
