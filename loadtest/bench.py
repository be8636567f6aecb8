"""Speed of the parts, each beside a bare loop of the same client in the same run: `make bench`.

Needs a running stack; makes topics and a database of its own and drops them. The ratio is what counts: the seconds
are this machine's, on this day.
"""

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
import uvloop
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool
from rich.console import Console
from rich.table import Table

from messaging.consumer import FairConsumer
from messaging.database import Connection, Pool
from messaging.errors import MessagingError
from messaging.fairness import Fairness
from messaging.job import Handler, Job
from messaging.message import Key
from messaging.migrate import migrate
from messaging.policy import Backoff, Policy, Subscription
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer, producer_config
from messaging.settings import read_secret
from stack import control

SLOTS = 20
console = Console()


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured rate beside its bare loop's, both a second."""

    part: str
    rate: float
    bare: float

    @property
    def ratio(self) -> float:
        return self.rate / self.bare


class _Nothing:
    """A handler and a reader that do as little as can be."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self.runs = 0
        self.first = asyncio.Event()
        self.last = asyncio.Event()

    async def read(self, headers: dict[str, bytes], value: bytes | None) -> tuple[Any, Handler] | None:
        return value, self

    async def run(self, job: Job) -> None:
        self.runs += 1
        if self.runs == 1:
            self.first.set()
        if self.runs == self._jobs:
            self.last.set()

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        raise AssertionError("nothing fails here")

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        raise AssertionError("nothing fails here")


def pick_cost(senders: int, *, tenants: bool) -> tuple[float, float]:
    """Microseconds of a scheduler pick with so many senders waiting: p50 and p99."""
    fairness, rng, running, costs = Fairness(Policy(2, SLOTS, lend=True)), random.Random(1), [], []  # noqa: S311
    for number in range(senders):
        fairness.add(Key(f"t{number}" if tenants else "t", f"s{number}"), 2)
    for _ in range(20_000):
        while fairness.free_slots:
            begun = time.perf_counter()
            picked = fairness.pick()
            costs.append((time.perf_counter() - begun) * 1e6)
            assert picked is not None
            running.append(picked.key)
            fairness.add(picked.key)
        fairness.finished(running.pop(rng.randrange(len(running))), rng.uniform(0.5, 1.5))
    costs.sort()
    return costs[len(costs) // 2], costs[int(len(costs) * 0.99)]


def bare_loop(bootstrap: str, topic: str, jobs: int) -> float:
    """Records a second of a consume loop that looks at key, headers and offset of each."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"bare-{uuid.uuid4()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen = len(consumer.consume(1, 30.0))
    begun = time.perf_counter()
    while seen < jobs:
        # consume() waits until its batch is full or the time is over: the last one would count its waiting.
        first = consumer.poll(0.5)
        for record in [first, *consumer.consume(999, 0)] if first is not None else []:
            record.key(), record.headers(), record.offset()
            seen += 1
    rate = jobs / (time.perf_counter() - begun)
    consumer.close()
    return rate


@asynccontextmanager
async def database(admin: str) -> AsyncIterator[str]:
    """A database with the room's own tables; yields its conninfo."""
    name = f"bench_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    conninfo = make_conninfo(admin, dbname=name)
    try:
        migrate(conninfo, [], "postgres")
        yield conninfo
    finally:
        with psycopg.connect(admin, autocommit=True) as conn:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


async def no_op_jobs(bootstrap: str, admin: str, jobs: int, keys: int, *, ledger: bool) -> Figure:
    """Jobs a second that do nothing, over so many senders, with or without the ledger."""
    topic = f"bench-{uuid.uuid4().hex[:10]}"
    sub = Subscription("bench", topic, f"{topic}.retry", f"{topic}.dlq", Policy(2, SLOTS, lend=True), Backoff())
    names = [topic, sub.retry_topic, sub.dead_letter_topic]
    kafka = AdminClient({"bootstrap.servers": bootstrap})
    for made in kafka.create_topics([NewTopic(name, 4, 1) for name in names]).values():
        made.result(10)
    try:
        sender = Producer(producer_config(bootstrap, "bench"))
        for number in range(jobs):
            sender.produce(topic, b"{}", f"t:{number % keys}", headers=[("ce_id", str(uuid.uuid4()).encode())])
            sender.poll(0)
        sender.flush()
        bare = await asyncio.to_thread(bare_loop, bootstrap, topic, jobs)
        async with database(admin) as conninfo:
            rate = await _drain(bootstrap, sub, jobs, conninfo if ledger else None)
    finally:
        for gone in kafka.delete_topics(names).values():
            gone.result(10)
    return Figure(f"no-op jobs/s, {keys} keys, {'with' if ledger else 'without'} ledger", rate, bare)


async def _drain(bootstrap: str, sub: Subscription, jobs: int, conninfo: str | None) -> float:
    nothing, producer = _Nothing(jobs), ConfirmedProducer(bootstrap, "bench")
    producer.open()
    pool: Pool | None = None
    if conninfo is not None:
        pool = AsyncConnectionPool(conninfo, min_size=4, max_size=10, open=False)
        await pool.open()
    presence = Presence(conninfo, sub.consumer) if conninfo is not None else None
    consumer = FairConsumer(sub, nothing, bootstrap=bootstrap, producer=producer, pool=pool, presence=presence)
    await consumer.open()
    await nothing.first.wait()
    begun, before = time.perf_counter(), nothing.runs
    await nothing.last.wait()
    rate = (jobs - before) / (time.perf_counter() - begun)
    await consumer.close()
    await producer.close()
    if pool is not None:
        await pool.close()
    return rate


def main(
    jobs: Annotated[int, typer.Option(help="No-op jobs of each run.", min=1000)] = 50_000,
    data_dir: Annotated[Path, typer.Option(help="Data directory of the running stack.")] = control.DEFAULT_DATA_DIR,
    out: Annotated[Path, typer.Option(help="Where the figures are kept, as JSON.")] = Path("loadtest/out/bench.json"),
) -> None:
    """Measure the scheduler's pick and the consumer's no-op jobs, beside a bare consume loop."""
    try:
        endpoints = control.endpoints(data_dir)
    except control.NotRunning as error:
        raise typer.BadParameter("No stack runs: start it with `make up`.") from error
    admin = make_conninfo(
        endpoints.admin.url, password=read_secret(endpoints.admin.password_file, "the superuser's password")
    )
    picks = {name: pick_cost(100_000, tenants=tenants) for name, tenants in (("one tenant", False), ("own", True))}
    figures = []
    for keys, count, ledger in ((1000, jobs, False), (1, jobs, False), (1000, jobs // 5, True), (1, jobs // 5, True)):
        with console.status(f"{count} jobs over {keys} keys, {'with' if ledger else 'without'} ledger"):
            figures.append(uvloop.run(no_op_jobs(endpoints.kafka, admin, count, keys, ledger=ledger)))
    table = Table("part", "a second", "bare loop", "ratio")
    for figure in figures:
        table.add_row(figure.part, f"{figure.rate:,.0f}", f"{figure.bare:,.0f}", f"1/{1 / figure.ratio:,.0f}")
    console.print(table)
    for name, (middle, slow) in picks.items():
        console.print(f"pick among 100,000 senders, tenant: {name}: p50 {middle:.1f} us, p99 {slow:.1f} us")
    out.parent.mkdir(parents=True, exist_ok=True)
    shown = [{"part": f.part, "rate": f.rate, "bare": f.bare, "ratio": f.ratio} for f in figures]
    out.write_text(json.dumps({"figures": shown, "pick_us": picks}, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
