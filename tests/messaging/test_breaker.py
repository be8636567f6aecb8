"""When failures are everybody's: the provider's breaker and the fuse before the dead letters."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.breaker import JOBS, LARGEST_PART, RUNS, WINDOW, Breaker, Fuse
from messaging.database import Pool
from messaging.errors import NotRetryable, Unavailable
from messaging.job import Job
from messaging.message import Key
from messaging.outcomes import FUSE
from messaging.policy import Subscription
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import Recording, consuming, read_all, send, until

ANN, BOB, CEM = Key("acme", "ann"), Key("acme", "bob"), Key("zeta", "cem")


@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=60))
def test_a_breaker_is_open_exactly_after_ten_failed_runs_of_three_jobs_in_a_row(runs: list[int | None]) -> None:
    breaker, streak = Breaker(), list[int]()
    for job in runs:
        if job is None:
            breaker.passed()
            streak.clear()
        else:
            streak.append(job)
            opened = breaker.failed("provider", str(job))
            assert opened == (len(streak) >= RUNS and len(set(streak)) >= JOBS)


def test_breakers_are_one_per_resource() -> None:
    breaker = Breaker()
    opened = [breaker.failed(("provider", "fax")[n % 2], str(n)) for n in range(2 * RUNS - 2)]
    assert not any(opened)
    assert breaker.failed("provider", "x")


@given(st.lists(st.tuples(st.sampled_from([ANN, BOB, CEM]), st.booleans()), max_size=3 * WINDOW))
def test_a_fuse_that_blew_had_most_of_the_last_jobs_dying_and_no_one_sender_to_blame(
    jobs: list[tuple[Key, bool]],
) -> None:
    fuse, ended = Fuse(0.5), list[Key | None]()
    for key, dies in jobs:
        ended.append(key if dies else None)
        if not dies:
            fuse.passed()
            continue
        if fuse.holds("broken", key, 0.0):
            deaths = [sender for sender in ended[-WINDOW:] if sender is not None]
            assert len(deaths) > WINDOW / 2
            assert max(deaths.count(sender) for sender in set(deaths)) <= len(deaths) * LARGEST_PART
            return


def test_one_sender_never_blows_it_and_a_bad_deploy_does() -> None:
    fuse = Fuse(0.5)
    assert not any(fuse.holds("malformed_pdf", ANN, 0.0) for _ in range(1000))
    fuse = Fuse(0.5)
    blown = [fuse.holds("attempts_exhausted", (ANN, BOB, CEM)[n % 3], 100.0) for n in range(60)]
    assert blown.index(True) == WINDOW // 2
    assert all(blown[WINDOW // 2 :])
    later = [fuse.holds("attempts_exhausted", ANN, 100.0 + 0.5 * tenth) for tenth in range(31)]
    assert [n for n, held in enumerate(later) if not held] == [10, 20, 30], "one every five seconds"
    fuse.passed()
    assert not fuse.holds("attempts_exhausted", ANN, 116.0)


def test_different_reasons_do_not_add_up_and_a_share_of_one_turns_it_off() -> None:
    fuse = Fuse(0.5)
    assert not any(fuse.holds(f"reason-{n % 4}", (ANN, BOB, CEM)[n % 3], 0.0) for n in range(400))
    assert not any(Fuse(1.0).holds("same", (ANN, BOB, CEM)[n % 3], 0.0) for n in range(400))


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
