"""The load of no-op jobs: outbox -> relay -> Kafka -> two workers with an ordered and an unordered consumer each.

The effect of a job is one row in its transaction. Everything is handed in through the outbox, so the relay is struck
under load too.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import make_conninfo

from messaging.admin import TopicSpec, create_topics
from messaging.database import conninfo
from stack.child import Child
from stack.endpoints import Endpoints
from tests.chaos import nooptrail
from tests.chaos.audit import Findings
from tests.chaos.crew import Crew, member
from tests.chaos.handin import HandIn, make_database
from tests.chaos.joblog import JobLogs
from tests.chaos.records import Kind, Strike
from tests.chaos.strikes import Victim
from tests.chaos.worker import POLICIES, Orders, subscription

DATABASE = "chaos"
RELAY = "chaos"
WORKERS = ("noop-worker-1", "noop-worker-2")
RELAYS = ("noop-relay-1", "noop-relay-2")
PARTITIONS = 6

NEARLY = 0.9
"""From this part of the jobs on, the database is asked."""

_ENDS = "select (select count(distinct job) from effects) + (select count(distinct job) from ends)"


class NoOpLoad:
    """So many jobs, half of them ordered. Enter it on a running stack; `release` lets jobs be handed in.

    killers: so many of the jobs end the process that runs them, each time.
    """

    name = "no-op jobs"

    def __init__(self, endpoints: Endpoints, folder: Path, *, jobs: int, seed: int, killers: int = 0) -> None:
        self.jobs = jobs
        self._endpoints = endpoints
        self._folder = folder
        self._topics = {consumer: f"chaos.{consumer}" for consumer in POLICIES}
        self._logs = JobLogs(folder / "jobs")
        self._url = make_conninfo(endpoints.admin.url, dbname=DATABASE)
        self._database = conninfo(self._url, endpoints.admin.password_file, "chaos-run")
        self._hand_in = HandIn(self._database, self._topics, jobs=jobs, seed=seed, killers=killers)

    async def __aenter__(self) -> Self:
        admin = conninfo(self._endpoints.admin.url, self._endpoints.admin.password_file, "chaos-run")
        await asyncio.to_thread(make_database, admin, DATABASE, self._database)
        subs = [subscription(consumer, topic) for consumer, topic in self._topics.items()]
        names = [name for sub in subs for name in (sub.topic, sub.retry_topic, sub.dead_letter_topic)]
        specs = [TopicSpec(name, PARTITIONS, {"retention.ms": "-1"}) for name in names]
        await create_topics(self._endpoints.kafka, specs)
        async with AsyncExitStack() as stack:
            self.crew = await stack.enter_async_context(Crew(self._folder / "crew", self._members()))
            self._sending = asyncio.create_task(self._hand_in.run(), name="hand-in")
            stack.push_async_callback(self._stop_sending)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def release(self, upto: int) -> None:
        """Jobs up to this number may be handed in now."""
        self._hand_in.gate.release(upto)

    async def progress(self) -> int:
        """Jobs with an effect, by the workers' logs: known while the database is away, too."""
        if self._sending.done():
            self._sending.result()
        await asyncio.to_thread(self._logs.follow)
        return len(self._logs.done)

    async def settled(self) -> bool:
        """Whether every job has its end in the database. The logs lack what was committed and not answered."""
        if await self.progress() < self.jobs * NEARLY:
            return False
        try:
            async with await psycopg.AsyncConnection.connect(self._database, autocommit=True) as conn:
                row = await (await conn.execute(_ENDS)).fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and int(row[0]) >= self.jobs

    def workers(self, kind: Kind) -> list[Victim]:
        """Both workers, whatever is done to them; one is back when it has opened its log and joins its groups."""
        return [self._worker(name) for name in WORKERS]

    async def leaders(self) -> list[Victim]:
        """The relay that leads now."""
        leader = await asyncio.to_thread(leading, self._database, RELAY)
        return [self.crew.victim(name) for name in RELAYS if self.crew.pid(name) == leader]

    async def find(self, strikes: Sequence[Strike], until: float) -> Findings:
        """The audit, from what is recorded now."""
        await self.progress()
        sources = nooptrail.Sources(
            self._database,
            self._endpoints.kafka,
            [subscription(consumer, topic) for consumer, topic in self._topics.items()],
            PARTITIONS,
            {name: self.crew.pid(name) for name in WORKERS},
            self._folder,
        )
        found = await asyncio.to_thread(nooptrail.find, sources, self._logs, self.jobs, strikes, until)
        found.figures["worker_and_relay_restarts"] = self.crew.restarts()
        found.figures["longest_hand_in_seconds"] = round(self._hand_in.longest, 2)
        return found

    def _members(self) -> list[Child]:
        password_file = str(self._endpoints.admin.password_file)
        orders = Orders(self._url, password_file, self._endpoints.kafka, self._topics, str(self._logs.folder))
        workers = [member(name, "tests.chaos.worker", orders.text()) for name in WORKERS]
        told = (self._url, password_file, self._endpoints.kafka, RELAY)
        return workers + [member(name, "tests.chaos.standby", *told) for name in RELAYS]

    def _worker(self, name: str) -> Victim:
        member = self.crew.victim(name)

        async def is_back(before: int) -> bool:
            return await member.is_back(before) and self._logs.knows(self.crew.pid(name) or 0)

        return replace(member, is_back=is_back)

    async def _stop_sending(self) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)


def leading(database: str, relay: str) -> int | None:
    """The pid of the process that leads a relay; None while that cannot be known."""
    try:
        with psycopg.connect(database, autocommit=True) as conn:
            row = conn.execute(
                "select process from relay_leader where name = %s and beat_at > clock_timestamp() - interval '2 s'",
                [relay],
            ).fetchone()
    except psycopg.OperationalError:
        return None
    return None if row is None else int(str(row[0]).rpartition(":")[2])
