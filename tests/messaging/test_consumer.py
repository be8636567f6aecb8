"""The fair consumer on a real broker and database: order, caps, retries, dead letters, commits, rebalances."""

import asyncio
import random
import time
from collections.abc import Callable

from confluent_kafka import Producer

from messaging.consumer import Limits
from messaging.database import Connection, Pool
from messaging.deadletter import DEAD_ATTEMPTS, DEAD_ERROR, DEAD_REASON, original_headers
from messaging.errors import MessagingError, NotRetryable, Outage, Retryable, Throttled
from messaging.intake import ENTRY_BYTES
from messaging.job import Job
from messaging.message import headers_to_dict
from messaging.policy import Backoff, Policy, Subscription
from messaging.watch import TICK_SECONDS
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import Recording, committed, consuming, read_all, send, until


async def nothing(_job: Job) -> None:
    """A no-op job."""


async def test_jobs_run_once_and_the_commit_reaches_the_end(
    infra: Infra, source: Callable[..., Subscription]
) -> None:
    sub = source(partitions=3)
    ids = send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % 7}", {"n": n}) for n in range(300)])
    handler = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: len(handler.starts) >= 300, what="300 jobs")
    assert sorted(handler.ids()) == sorted(ids)
    assert committed(infra.kafka_bootstrap, sub, 3) == 300
    again = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, again):
        await asyncio.sleep(1.5)
    assert again.starts == [], "what was committed is not read again"


async def test_nothing_past_a_running_job_is_committed(infra: Infra, source: Callable[..., Subscription]) -> None:
    sub = source()
    release = asyncio.Event()

    async def first_is_slow(job: Job) -> None:
        if job.event["n"] == 0:
            await release.wait()

    send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n}", {"n": n}) for n in range(50)])
    handler = Recording(first_is_slow)
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: len(handler.starts) == 50 and handler.running == 1)
        await asyncio.sleep(1.0)
        assert committed(infra.kafka_bootstrap, sub) == 0
        release.set()
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 50, what="the commit follows")


async def test_caps_guarantee_and_lending(infra: Infra, source: Callable[..., Subscription]) -> None:
    """One sender alone is lent every slot; beside four others it falls back to its guarantee as its jobs end."""
    sub = source()
    running: dict[str, int] = {}
    seen: list[dict[str, int]] = []

    async def work(job: Job) -> None:
        running[job.key.sender] = running.get(job.key.sender, 0) + 1
        seen.append(dict(running))
        await asyncio.sleep(0.05)
        running[job.key.sender] -= 1

    handler = Recording(work)
    send(infra.kafka_bootstrap, sub.topic, [("acme:noisy", {}) for _ in range(200)])
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: len(handler.starts) > 40)
        assert max(state["noisy"] for state in seen) == 10, "idle slots are lent"
        send(infra.kafka_bootstrap, sub.topic, [(f"acme:q{n % 4}", {}) for n in range(40)])
        await until(lambda: len(handler.starts) == 240)
    assert handler.most == 10
    contended = [s for s in seen if all(s.get(f"q{n}", 0) >= 1 for n in range(4))]
    assert contended, "all four ran beside the noisy one"
    assert min(state["noisy"] for state in contended) <= 3


async def test_a_strict_cap_never_lends(infra: Infra, source: Callable[..., Subscription]) -> None:
    sub = source(policy=Policy(per_key=2, total=10, lend=False))
    handler = Recording(lambda _job: asyncio.sleep(0.02))
    send(infra.kafka_bootstrap, sub.topic, [("acme:noisy", {}) for _ in range(40)])
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: len(handler.starts) == 40)
    assert handler.most == 2


async def test_a_quiet_sender_behind_a_backlog_starts_soon(infra: Infra, source: Callable[..., Subscription]) -> None:
    """5,000 jobs of one sender lie before one of another in the same partition; most are parked, none hides it."""
    sub = source()
    jobs = [("acme:noisy", {"who": "noisy"})] * 5000 + [("acme:quiet", {"who": "quiet"})]
    send(infra.kafka_bootstrap, sub.topic, jobs, partition=0)
    handler = Recording(lambda _job: asyncio.sleep(0.005))
    order: list[str] = []

    async def work(job: Job) -> None:
        order.append(job.event["who"])
        await asyncio.sleep(0.005)

    handler.work = work
    async with consuming(infra.kafka_bootstrap, sub, handler) as consumer:
        await until(lambda: "quiet" in order, what="the quiet sender's start")
        assert order.index("quiet") < 1000
        assert consumer.scheduler.lanes.parked > 2000
        await until(lambda: len(order) == 5001, 60, "parked records are read again and run")
        assert consumer.scheduler.lanes.payload_bytes == 0
    assert committed(infra.kafka_bootstrap, sub) == 5001


async def test_twenty_thousand_jobs_in_front_delay_another_sender_by_less_than_three_seconds(
    infra: Infra, source: Callable[..., Subscription]
) -> None:
    """From a cold start: join the group, read past them all, start the one behind them while they hold every slot."""
    sub = source()
    jobs = [("acme:noisy", {})] * 20_000 + [("acme:quiet", {})]
    *_, quiet = send(infra.kafka_bootstrap, sub.topic, jobs, partition=0)
    handler = Recording(lambda _job: asyncio.sleep(0.2))
    begun = time.monotonic()
    async with consuming(infra.kafka_bootstrap, sub, handler, limits=Limits(drain_seconds=0.5)) as consumer:
        await until(lambda: quiet in handler.ids(), 30, "the quiet sender's start")
        started = next(at for job, _, at in handler.starts if job == quiet)
        assert started - begun <= 3.0
        assert handler.ids().index(quiet) < 200
        in_memory = consumer.scheduler.lanes.payload_bytes
        assert in_memory < 300 * (ENTRY_BYTES + 60), "the backlog is in memory as offsets only"


async def test_ordered_jobs_keep_their_order_across_retries(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(policy=Policy(per_key=1, total=20, ordered=True), backoff=Backoff(attempts=4, base=0.02, cap=0.1))
    done: dict[str, list[int]] = {}
    rng = random.Random(5)

    async def work(job: Job) -> None:
        await asyncio.sleep(rng.random() * 0.005)
        if rng.random() < 0.3 and job.attempt < 4:
            raise Retryable("not now")
        async with job.transaction():
            done.setdefault(job.key.sender, []).append(job.event["n"])

    send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % 10}", {"n": n}) for n in range(300)])
    handler = Recording(work)
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: sum(map(len, done.values())) == 300, 40)
    for numbers in done.values():
        assert numbers == sorted(numbers)
    assert len(handler.retries) > 50
    assert read_all(infra.kafka_bootstrap, sub.retry_topic) == [], "an ordered retry waits in its lane"


async def test_retries_hold_no_slot_and_end_as_one_dead_letter(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(policy=Policy(per_key=1, total=1), backoff=Backoff(attempts=4, base=0.4, cap=2.0))

    async def work(job: Job) -> None:
        if job.event["who"] == "bad":
            raise Retryable("still broken")

    handler = Recording(work)
    bad, *_ = send(infra.kafka_bootstrap, sub.topic, [("acme:bad", {"who": "bad"})])
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: len(handler.starts) == 1)
        good = send(infra.kafka_bootstrap, sub.topic, [("acme:good", {"who": "good"})] * 20)
        await until(lambda: set(good) <= set(handler.ids()), what="the one slot is free while the retry waits")
        await until(lambda: len(handler.ends) == 1, 30)
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 21)
    assert [attempt for job, attempt, _ in handler.starts if job == bad] == [1, 2, 3, 4]
    assert handler.ends == [(bad, "still broken", 4)]
    assert [job for job, _, _ in handler.retries] == [bad] * 3
    letters = read_all(infra.kafka_bootstrap, sub.dead_letter_topic)
    assert len(letters) == 1
    headers = headers_to_dict(letters[0].headers())
    assert (headers[DEAD_REASON], headers[DEAD_ATTEMPTS]) == (b"attempts_exhausted", b"4")
    assert headers[DEAD_ERROR] == b"still broken"
    assert original_headers(letters[0].headers()) == [("ce_id", bad.encode())]
    assert (letters[0].key(), letters[0].value()) == (b"acme:bad", b'{"who": "bad"}')


async def test_what_no_retry_can_fix_is_dead_after_one_attempt_and_the_next_goes_on(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source()

    async def work(job: Job) -> None:
        if job.event.get("broken"):
            raise NotRetryable("The PDF has no pages.", "malformed_pdf")

    handler = Recording(work)
    garbage = [b"\x00\xff", b"", b"{", b'"not ours"']
    send(infra.kafka_bootstrap, sub.topic, [("acme:a", {"broken": True}), *(("acme:a", g) for g in garbage)])
    send(infra.kafka_bootstrap, sub.topic, [("no colon", {"x": 1}), ("acme:a", {"last": True})])
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: len(handler.starts) == 2)
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 7)
    letters = [headers_to_dict(letter.headers()) for letter in read_all(infra.kafka_bootstrap, sub.dead_letter_topic)]
    assert sorted(h[DEAD_REASON] for h in letters) == [b"malformed_pdf", *[b"undecodable"] * 4]
    assert {h[DEAD_ATTEMPTS] for h in letters} == {b"1"}
    assert [(error, attempts) for _, error, attempts in handler.ends] == [("The PDF has no pages.", 1)]


async def test_effects_and_done_commit_together_and_once(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    """The same message five times, and one effect; a handler that fails after its effect rolls it back."""
    sub = source()
    async with ledger_pool.connection() as conn:
        await conn.execute("create table effects (job text)")

    async def work(job: Job) -> None:
        async with job.transaction() as conn:
            await conn.execute("insert into effects values (%s)", (job.id,))
            if job.event.get("fails") and job.attempt == 1:
                raise Retryable("after the effect")

    handler = Recording(work)
    ids = send(infra.kafka_bootstrap, sub.topic, [("acme:a", {}), ("acme:b", {"fails": True})])
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap})
    for record in read_all(infra.kafka_bootstrap, sub.topic) * 4:
        producer.produce(sub.topic, record.value(), record.key(), headers=record.headers())
    assert producer.flush(10) == 0
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 10, 30)
    async with ledger_pool.connection() as conn:
        rows = await (await conn.execute("select job, count(*) from effects group by job")).fetchall()
    assert sorted(rows) == sorted((job, 1) for job in ids)


async def test_throttling_and_outages_charge_nothing(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(backoff=Backoff(attempts=2, base=0.05, cap=0.1))
    answers: list[Exception] = [Throttled("429", 0.3), Outage("registry away", "registry"), Throttled("429", 0.2)]

    async def work(job: Job) -> None:
        if answers:
            raise answers.pop(0)

    handler = Recording(work)
    send(infra.kafka_bootstrap, sub.topic, [("acme:a", {})])
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: len(handler.starts) == 4)
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 1)
    assert [attempt for _, attempt, _ in handler.starts] == [1, 1, 1, 1]
    times = [at for _, _, at in handler.starts]
    assert times[1] - times[0] >= 0.29
    assert handler.ends == []


async def test_a_second_worker_takes_over_half_and_gives_it_back(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(partitions=4)
    one, two = Recording(lambda _job: asyncio.sleep(0.01)), Recording(lambda _job: asyncio.sleep(0.01))
    ids: list[str] = []

    def more() -> None:
        """Some jobs of each sender, so that none of the workers is ever out of work for long."""
        ids.extend(send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{n % 40}", {"n": n}) for n in range(120)]))

    async def work_until(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, what
            if len(ids) - len(one.starts) - len(two.starts) < 120:
                more()
            await asyncio.sleep(0.02)

    args = (infra.kafka_bootstrap, sub)
    async with consuming(*args, one, pool=ledger_pool, conninfo=database.conninfo):
        await work_until(lambda: len(one.starts) > 100, "the first worker works")
        async with consuming(*args, two, pool=ledger_pool, conninfo=database.conninfo):
            await work_until(lambda: len(two.starts) > 200, "the second worker gets partitions")
        before = len(one.starts)
        more()
        await until(lambda: len(set(one.ids() + two.ids())) == len(ids), 60)
        assert len(one.starts) > before
        await until(lambda: committed(infra.kafka_bootstrap, sub, 4) == len(ids))
    assert sorted(one.ids() + two.ids()) == sorted(ids), "no job ran twice"


async def test_a_drain_cuts_long_work_short_uncharged(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source()
    started = asyncio.Event()

    async def endless(job: Job) -> None:
        started.set()
        await asyncio.sleep(3600)

    send(infra.kafka_bootstrap, sub.topic, [("acme:a", {})])
    first = Recording(endless)
    begun = time.monotonic()
    limits = Limits(drain_seconds=0.5)
    async with consuming(
        infra.kafka_bootstrap, sub, first, pool=ledger_pool, conninfo=database.conninfo, limits=limits
    ):
        await started.wait()
        begun = time.monotonic()
    assert time.monotonic() - begun < 5
    second = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, second, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: len(second.starts) == 1)
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 1)
    assert second.starts[0][1] == 1, "the attempt that we stopped is not charged"
    async with ledger_pool.connection() as conn:
        row = await (await conn.execute("select state, failures, strikes from ledger")).fetchone()
    assert row == ("done", 0, 0)


async def test_every_run_is_in_the_attempts_table(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(backoff=Backoff(attempts=2, base=0.05, cap=0.1))

    async def work(job: Job) -> None:
        await asyncio.sleep(0.05)
        if job.event.get("bad"):
            raise Retryable("no")

    send(infra.kafka_bootstrap, sub.topic, [("acme:a", {}), ("acme:b", {"bad": 1})])
    handler = Recording(work)
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 2 and len(handler.ends) == 1)
    async with ledger_pool.connection() as conn:
        query = """select sender, attempt, outcome, lent, error, ready_at <= started_at,
                          extract(epoch from finished_at - started_at) > 0.04
                   from ledger_attempts order by sender, attempt"""
        rows = await (await conn.execute(query)).fetchall()
    assert rows == [
        ("a", 1, "done", False, None, True, True),
        ("b", 1, "retry", False, "no", True, True),
        ("b", 2, "dead", False, "no", True, True),
    ]


async def test_a_job_whose_end_its_service_cannot_note_is_set_aside_without_it(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    """Or it would hold its partition's commit for ever."""
    sub = source()

    class Broken(Recording):
        async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
            raise ValueError("a fault in the hook")

    async def work(job: Job) -> None:
        raise NotRetryable("no good", "no_good")

    handler = Broken(work)
    send(infra.kafka_bootstrap, sub.topic, [("acme:a", {})])
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 1, 30, "the commit moves on")
    reasons = [
        headers_to_dict(letter.headers())[DEAD_REASON]
        for letter in read_all(infra.kafka_bootstrap, sub.dead_letter_topic)
    ]
    assert reasons[-1] == b"outcome_unwritable"
    async with ledger_pool.connection() as conn:
        row = await (await conn.execute("select state from ledger")).fetchone()
    assert row == ("dead",)


async def test_hostile_headers_cost_nobody_an_attempt_row(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source()
    producer = Producer({"bootstrap.servers": infra.kafka_bootstrap, "log_level": 2})
    for number in range(3):
        headers = [("ce_id", f"job-{number}".encode()), ("ce_subject", b"nul\x00inside" if number == 1 else b"fine")]
        producer.produce(sub.topic, b"{}", "acme:a", headers=headers)
    assert producer.flush(10) == 0
    handler = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=ledger_pool, conninfo=database.conninfo):
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 3)
    async with ledger_pool.connection() as conn:
        rows = await (await conn.execute("select subject from ledger_attempts order by message_id")).fetchall()
    assert rows == [("fine",), ("nulinside",), ("fine",)]


async def test_a_handler_cancelled_from_within_fails_and_frees_its_slot(
    infra: Infra, source: Callable[..., Subscription]
) -> None:
    sub = source(policy=Policy(per_key=1, total=1), backoff=Backoff(attempts=2, base=0.05, cap=0.1))

    async def work(job: Job) -> None:
        if job.event.get("waits"):
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

    handler = Recording(work)
    bad, good = send(infra.kafka_bootstrap, sub.topic, [("acme:a", {"waits": True}), ("acme:a", {})])
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: good in handler.ids(), what="the one slot is free again")
        await until(lambda: committed(infra.kafka_bootstrap, sub) == 2)
        await until(lambda: handler.ids().count(bad) == 2, what="it is tried again")


async def test_one_senders_backlog_is_read_again_without_waiting_for_a_tick(
    infra: Infra, source: Callable[..., Subscription]
) -> None:
    """4,000 no-op jobs of one key, all but a window of them parked: a refill a tick would take 5 seconds and more."""
    sub = source()
    send(infra.kafka_bootstrap, sub.topic, [("acme:one", {})] * 4000)
    handler = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, handler):
        await until(lambda: len(handler.starts) == 4000, 60)
    took = handler.starts[-1][2] - handler.starts[0][2]
    refills = 4000 / 150
    assert took < refills * TICK_SECONDS, f"{took:.1f} s for {refills:.0f} refills"
