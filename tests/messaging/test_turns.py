"""Turns: runs that need no waiting share a task and nothing else; those that wait keep one of their own."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging import telemetry
from messaging.entries import Entry, Partition
from messaging.job import Job
from messaging.lanes import Lanes
from messaging.message import Key, headers_to_dict
from messaging.outcomes import Outcomes
from messaging.policy import Policy
from messaging.producer import ConfirmedProducer
from messaging.runs import Run, Runs
from messaging.scheduler import Scheduler
from tests.messaging.harness import JsonReader, Recording, subscription


@dataclass
class Record:
    name: str
    extra: list[tuple[str, str | bytes | None]] = field(default_factory=list)

    def key(self) -> bytes:
        return b"acme:a"

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> list[tuple[str, str | bytes | None]]:
        return [("ce_id", self.name.encode()), *self.extra]

    def named(self) -> dict[str, bytes]:
        return headers_to_dict(self.headers())


class Bench:
    """A scheduler with its lanes and runs, without Kafka and the ledger."""

    def __init__(self, work: Callable[[Job], Awaitable[None]], policy: Policy | None = None) -> None:
        self.handler = Recording(work)
        self.partition = Partition("jobs", 0, is_retry=False)
        self.ended: list[Run] = []
        sub = subscription("jobs", policy or Policy(per_key=2, total=10, lend=True))
        runs = Runs(JsonReader(self.handler), None, None)
        # Nothing fails here for good, so nothing is produced.
        outcomes = Outcomes(sub, runs, cast(ConfirmedProducer, None), None, None)
        self.scheduler = Scheduler(
            sub.consumer, sub.policy, Lanes(window=100_000), runs, outcomes, self._note, lambda: None
        )
        self._count = 0

    def _note(self, run: Run, _ended_at: float) -> None:
        self.ended.append(run)

    def put(self, sender: str, jobs: int = 1, extra: list[tuple[str, str | bytes | None]] | None = None) -> None:
        """So many jobs more; `dispatch` starts them."""
        for _ in range(jobs):
            record = Record(f"{sender}-{self._count}", extra or [])
            assert self.partition.offsets.seen(self._count)
            self.scheduler.arrive(Entry(Key("acme", sender), self.partition, self._count, record, 2, 0.0))
            self._count += 1

    async def all_done(self) -> None:
        async with asyncio.timeout(60):
            while len(self.ended) < self._count:
                await asyncio.sleep(0.001)


async def nothing(_job: Job) -> None:
    """A no-op job."""


async def test_runs_of_one_turn_share_neither_trace_nor_logged_fields() -> None:
    seen: list[tuple[str, str | None, dict[str, object], asyncio.Task[None] | None]] = []

    async def work(job: Job) -> None:
        seen.append(
            (job.id, telemetry.current_traceparent(), structlog.contextvars.get_contextvars(), asyncio.current_task())
        )
        structlog.contextvars.bind_contextvars(job=job.id)

    bench = Bench(work)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bench.put("a", extra=[("traceparent", parent.encode())])
    bench.put("a", 20)
    bench.scheduler.dispatch()
    await bench.all_done()
    assert len({id(task) for _, _, _, task in seen}) < len(seen), "some shared a task"
    traces = [trace for _, trace, _, _ in seen if trace is not None]
    assert len({trace[3:35] for trace in traces}) == 21, "each has a trace of its own"
    assert sum(trace[3:35] == parent[3:35] for trace in traces) == 1
    assert [fields for _, _, fields, _ in seen] == [{}] * 21
    assert telemetry.current_traceparent() is None


async def test_what_follows_a_wait_is_in_the_runs_own_context_too() -> None:
    seen: list[tuple[str | None, str | None, str | None]] = []

    async def work(_job: Job) -> None:
        before = telemetry.current_traceparent()
        await asyncio.sleep(0.001)
        child = await asyncio.create_task(traced())
        seen.append((before, telemetry.current_traceparent(), child))

    async def traced() -> str | None:
        return telemetry.current_traceparent()

    bench = Bench(work)
    bench.put("a", 30)
    bench.scheduler.dispatch()
    await bench.all_done()
    assert all(before == after == child for before, after, child in seen)
    assert len({before for before, _, _ in seen}) == 30


async def test_a_slow_job_among_no_ops_does_not_hold_up_the_others() -> None:
    release = asyncio.Event()

    async def work(job: Job) -> None:
        if job.id.startswith("slow"):
            await release.wait()

    bench = Bench(work)
    for sender in ("a", "slow", "b"):
        bench.put(sender)
    bench.put("c", 500)
    bench.scheduler.dispatch()
    async with asyncio.timeout(30):
        while len(bench.ended) < 502:
            await asyncio.sleep(0.001)
    assert (bench.scheduler.running, bench.handler.running) == (1, 1)
    release.set()
    await bench.all_done()
    assert bench.scheduler.running == 0


async def test_the_loop_is_served_while_no_ops_run() -> None:
    bench, rounds = Bench(nothing), 0
    bench.put("a", 20_000)
    bench.scheduler.dispatch()
    while len(bench.ended) < 20_000:
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 10, "20,000 jobs are many turns"


async def test_a_job_that_cancels_its_task_without_waiting_takes_no_other_along() -> None:
    async def work(job: Job) -> None:
        if job.id.startswith("odd"):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)

    bench = Bench(work)
    bench.put("odd")
    bench.put("a", 5)
    bench.put("odd")
    bench.put("b", 5)
    bench.scheduler.dispatch()
    await bench.all_done()
    assert [run.outcome for run in bench.ended] == ["done"] * 12


async def test_a_timeout_inside_a_job_is_that_jobs_own() -> None:
    timed_out: list[str] = []

    async def work(job: Job) -> None:
        if job.id.startswith("slow"):
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:
                timed_out.append(job.id)

    bench = Bench(work)
    for number in range(20):
        bench.put("slow" if number % 3 == 0 else "quick")
    bench.scheduler.dispatch()
    await bench.all_done()
    assert len(timed_out) == 7
    assert bench.scheduler.running == 0


async def test_a_drain_waits_for_what_waits_and_a_cancel_ends_it() -> None:
    async def work(job: Job) -> None:
        if job.id.startswith("slow"):
            await asyncio.sleep(3600)

    bench = Bench(work)
    bench.put("slow", 3)
    bench.put("quick", 10)
    bench.scheduler.dispatch()
    async with asyncio.timeout(30):
        while len(bench.ended) < 10:
            await asyncio.sleep(0.001)
    bench.scheduler.stopped = True
    assert not await bench.scheduler.drain([bench.partition], 0.05)
    assert await bench.scheduler.drain([Partition("jobs", 1, is_retry=False)], 0.05)
    await bench.scheduler.cancel_all()
    assert await bench.scheduler.drain([bench.partition], 0.0)
    assert bench.partition.offsets.pending == 3, "what was cut short is not done"


@pytest.mark.parametrize("per_key", [1, 2])
async def test_an_ordered_or_strict_policy_holds_under_turns(per_key: int) -> None:
    running: Counter[str] = Counter()
    order: dict[str, list[str]] = {}
    rng = random.Random(3)

    async def work(job: Job) -> None:
        running[job.key.sender] += 1
        assert running[job.key.sender] <= per_key
        order.setdefault(job.key.sender, []).append(job.id)
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            await asyncio.sleep(0)
        running[job.key.sender] -= 1

    bench = Bench(work, Policy(per_key=per_key, total=6, ordered=per_key == 1))
    for _ in range(100):
        for sender in "abcdefgh":
            bench.put(sender)
    bench.scheduler.dispatch()
    await bench.all_done()
    assert not any(run.error for run in bench.ended)
    if per_key == 1:
        for ids in order.values():
            assert ids == sorted(ids, key=lambda job: int(job.split("-")[1]))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(3, 8),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=120),
)
def test_caps_hold_and_every_job_runs_once_whatever_waits(
    per_key: int, total: int, lend: bool, jobs: list[tuple[int, int]]
) -> None:
    """`jobs`: the sender, and how many rounds of the loop its job waits (0: none)."""

    async def scenario() -> None:
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()
        waits: dict[str, int] = {}
        seen: list[str] = []

        async def work(job: Job) -> None:
            sender = job.key.sender
            running[sender] += 1
            most[sender] = max(most[sender], running[sender])
            most["all"] = max(most["all"], running.total())
            seen.append(job.id)
            for _ in range(waits[job.id]):
                await asyncio.sleep(0)
            running[sender] -= 1

        bench = Bench(work, Policy(per_key=per_key, total=total, lend=lend))
        for number, (sender, rounds) in enumerate(jobs):
            waits[f"s{sender}-{number}"] = rounds
            bench.put(f"s{sender}")
            if number % 7 == 0:
                bench.scheduler.dispatch()
                await asyncio.sleep(0)
        bench.scheduler.dispatch()
        await bench.all_done()
        assert sorted(seen) == sorted(waits)
        assert most["all"] <= total
        if not lend:
            assert max(jobs_at_once for sender, jobs_at_once in most.items() if sender != "all") <= per_key
        assert (bench.scheduler.running, bench.scheduler.fairness.waiting) == (0, 0)
        assert bench.partition.offsets.committable() == len(jobs)

    asyncio.run(scenario())


async def test_what_ends_while_its_partition_is_given_up_counts_as_done() -> None:
    """Its offsets are committed after the drain; or without a ledger the job would run again elsewhere."""
    release = asyncio.Event()

    async def work(_job: Job) -> None:
        await release.wait()

    bench = Bench(work, Policy(per_key=1, total=1))
    bench.put("a", 2)
    bench.scheduler.dispatch()
    async with asyncio.timeout(30):
        while not bench.handler.running:
            await asyncio.sleep(0.001)
    bench.partition.active = False
    bench.scheduler.forget_inactive()
    release.set()
    assert await bench.scheduler.drain([bench.partition], 30)
    assert bench.partition.offsets.committable() == 1, "the first ran, the second did not"
    assert (len(bench.handler.starts), bench.scheduler.fairness.waiting) == (1, 0)
