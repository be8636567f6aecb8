"""What dies, freezes or kills: nothing is lost, no effect happens twice, no innocent job is set aside.

Real worker processes (tests/messaging/worker.py) are killed and frozen while they work; the truth is read from the
tables they wrote: starts (one row a start), effects (one row an effect), ends (dead letters).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from messaging.deadletter import DEAD_REASON
from messaging.message import headers_to_dict
from messaging.migrate import IDLE_IN_TRANSACTION, migrate
from messaging.policy import Subscription
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import committed, read_all, send, subscription, until

ROOT = Path(__file__).parents[2]


@dataclass
class Site:
    """A topic, a database, and the workers on them."""

    infra: Infra
    database: Database
    sub: Subscription
    policy: dict[str, Any] = field(default_factory=lambda: {"per_key": 2, "total": 10, "lend": True})
    workers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self) -> "subprocess.Popen[bytes]":
        told = {
            "bootstrap": self.infra.kafka_bootstrap,
            "topic": self.sub.topic,
            "conninfo": self.database.conninfo,
            "policy": self.policy,
        }
        worker = subprocess.Popen([sys.executable, "-m", "tests.messaging.worker", json.dumps(told)], cwd=ROOT)
        self.workers.append(worker)
        return worker

    def send(self, jobs: list[tuple[str, Any]]) -> list[str]:
        return send(self.infra.kafka_bootstrap, self.sub.topic, jobs)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.database.connect() as conn:
            return list(conn.execute(query).fetchall())

    def count(self, table: str) -> int:
        return int(self.rows(f"select count(*) from {table}")[0][0])

    def done(self) -> int:
        return committed(self.infra.kafka_bootstrap, self.sub)


@pytest.fixture
def site(infra: Infra, database: Database, topic: Callable[..., str]) -> Iterator[Site]:
    migrate(database.conninfo, [], "postgres")
    with database.connect() as conn:
        conn.execute("create table starts (job text, attempt int, pid int)")
        conn.execute("create table effects (job text, pid int)")
        conn.execute("create table ends (job text, attempts int, error text)")
        # As for the role of a service.
        limit = sql.SQL("alter database {} set idle_in_transaction_session_timeout = {}")
        conn.execute(limit.format(sql.Identifier(database.name), sql.Literal(IDLE_IN_TRANSACTION)))
    sub = subscription(topic())
    topic(name=sub.retry_topic)
    topic(name=sub.dead_letter_topic)
    made = Site(infra, database, sub)
    with ExitStack() as stack:
        yield made
        for worker in made.workers:
            if worker.poll() is None:
                stack.callback(worker.wait)
                worker.send_signal(signal.SIGCONT)
                worker.kill()


async def test_a_killed_worker_loses_nothing_and_repeats_no_more_than_its_slots(site: Site) -> None:
    ids = site.send([(f"acme:s{n % 5}", {"do": "effect", "seconds": 0.15}) for n in range(150)])
    first = site.start()
    await until(lambda: site.count("effects") > 20, 30)
    first.kill()
    first.wait()
    site.start()
    await until(lambda: site.count("effects") >= 150, 60, "every effect")
    await until(lambda: site.done() == 150, 20)
    assert sorted(job for (job,) in site.rows("select job from effects")) == sorted(ids)
    again = site.count("starts") - 150
    assert 0 < again <= 10, "only what was running at the kill ran again"
    assert site.rows("select max(attempt) from starts") == [(1,)], "a kill is not charged to the jobs it met"
    assert site.count("ends") == 0


async def test_a_job_that_kills_its_process_is_dead_after_three_starts_and_no_other_is(site: Site) -> None:
    """Its neighbours were running beside it the first time; from then on it runs alone."""
    jobs = [("acme:bad", {"do": "exit"})] + [(f"acme:s{n % 4}", {"do": "effect", "seconds": 0.1}) for n in range(40)]
    bad, *good = site.send(jobs)
    for _ in range(3):
        worker = site.start()
        await until(lambda w=worker: w.poll() is not None, 40, "the job kills its worker")  # type: ignore[misc]
    site.start()
    await until(lambda: site.count("effects") >= 40, 40)
    await until(lambda: site.done() == 41, 20)
    assert sorted(job for (job,) in site.rows("select job from effects")) == sorted(good)
    assert site.rows("select count(*) from starts where job = '" + bad + "'") == [(3,)]
    letters = read_all(site.infra.kafka_bootstrap, site.sub.dead_letter_topic)
    assert [headers_to_dict(letter.headers())[DEAD_REASON] for letter in letters] == [b"killed_its_process"]
    assert [(job, attempts) for job, attempts, _ in site.rows("select * from ends")] == [(bad, 3)]


async def test_attempts_survive_a_kill(site: Site) -> None:
    """Two failures, a kill during the third attempt, and it still is the third."""
    [job] = site.send([("acme:a", {"do": "fail", "times": 2, "seconds": 3.0})])
    first = site.start()
    await until(lambda: site.rows("select max(attempt) from starts") == [(3,)], 30)
    first.kill()
    first.wait()
    site.start()
    await until(lambda: site.count("effects") == 1, 40)
    assert [attempt for (attempt,) in site.rows("select attempt from starts")] == [1, 2, 3, 3]
    assert site.rows("select failures, strikes, state from ledger") == [(2, 1, "done")]
    assert site.rows("select job from effects") == [(job,)]


async def test_a_frozen_worker_is_replaced_and_does_no_harm_when_it_thaws(site: Site) -> None:
    ids = site.send([(f"acme:s{n % 5}", {"do": "effect", "seconds": 0.5}) for n in range(60)])
    first = site.start()
    await until(lambda: site.count("effects") >= 10, 30)
    second = site.start()
    await asyncio.sleep(1.0)
    os.kill(first.pid, signal.SIGSTOP)
    await until(lambda: site.count("effects") >= 60, 60, "the other worker does all of it")
    await until(lambda: site.done() == 60, 20)
    os.kill(first.pid, signal.SIGCONT)
    await asyncio.sleep(6.0)
    assert first.poll() is None
    assert second.poll() is None
    assert sorted(job for (job,) in site.rows("select job from effects")) == sorted(ids)
    assert site.done() == 60
    assert site.count("ends") == 0
    late = site.send([(f"acme:s{n}", {"do": "effect"}) for n in range(20)])
    await until(lambda: site.count("effects") >= 80, 30, "both go on")
    assert sorted(job for (job,) in site.rows("select job from effects")) == sorted(ids + late)


async def test_a_worker_that_freezes_with_a_row_of_the_ledger_in_its_hand_holds_nobody_up(site: Site) -> None:
    """Its transaction is open: whoever asks for that job waits for its row, and so do all that ask in one batch."""
    ids = site.send([(f"acme:s{n % 5}", {"do": "effect", "seconds": 0.2}) for n in range(40)])
    first = site.start()
    await until(lambda: site.count("effects") >= 40, 30)
    ids += site.send([("acme:s0", {"do": "freeze"})])
    ids += site.send([(f"acme:s{n % 5}", {"do": "effect", "seconds": 0.2}) for n in range(40)])
    second = site.start()
    await until(lambda: site.count("effects") >= 81, 60, "the other worker does all of it")
    os.kill(first.pid, signal.SIGCONT)
    await asyncio.sleep(6.0)
    assert first.poll() is None
    assert second.poll() is None
    assert sorted(job for (job,) in site.rows("select job from effects")) == sorted(ids)
    assert site.count("ends") == 0


async def test_ordered_jobs_keep_their_order_over_kills(site: Site) -> None:
    site.policy = {"per_key": 1, "total": 20, "ordered": True}
    site.send([(f"acme:s{n % 8}", {"do": "effect", "seconds": 0.02, "n": n}) for n in range(240)])
    with site.database.connect() as conn:
        conn.execute("alter table effects add at bigint generated always as identity")
    for _ in range(3):
        before = site.count("effects")
        worker = site.start()
        await until(lambda b=before: site.count("effects") > b + 30, 40)  # type: ignore[misc]
        worker.kill()
        worker.wait()
    site.start()
    await until(lambda: site.count("effects") >= 240, 60)
    order = {
        job.decode(): record.offset()
        for record in read_all(site.infra.kafka_bootstrap, site.sub.topic)
        for job in [headers_to_dict(record.headers())["ce_id"]]
    }
    keys = {
        headers_to_dict(record.headers())["ce_id"].decode(): record.key()
        for record in read_all(site.infra.kafka_bootstrap, site.sub.topic)
    }
    ran: dict[Any, list[Any]] = {}
    for (job,) in site.rows("select job from effects order by at"):
        ran.setdefault(keys[job], []).append(order[job])
    assert sum(map(len, ran.values())) == 240
    assert all(offsets == sorted(offsets) for offsets in ran.values())
