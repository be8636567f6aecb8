"""A worker of no-op jobs: `python -m tests.chaos.worker '{"database_url": …}'`. Two fair consumers in one process.

{"do": "effect"}               write one row of effects in the job's transaction
{"do": "fail", "times": 1}     fail that many attempts, then write the effect
{"do": "exit"}                 end this process at once, as a segmentation fault would
"""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from messaging import process
from messaging.consumer import FairConsumer, Limits
from messaging.database import Connection, Pool, conninfo, make_pool
from messaging.errors import Fenced, MessagingError, Retryable
from messaging.job import Job
from messaging.policy import Backoff, Policy, Subscription
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer
from messaging.settings import ProcessSettings
from tests.chaos.joblog import JobLog
from tests.chaos.records import Outcome
from tests.messaging.harness import JsonReader

POLICIES = {
    "unordered": Policy(per_key=2, total=10, lend=True),
    "ordered": Policy(per_key=1, total=20, ordered=True),
}
"""The consumers of a worker, by name. Each has a topic of its own."""

SLOTS = sum(policy.total for policy in POLICIES.values())
BACKOFF = Backoff(attempts=4, base=0.2, cap=1.0)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is told. The password stays in its file."""

    database_url: str
    password_file: str
    bootstrap: str
    topics: dict[str, str]
    logs: str

    def text(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


def subscription(consumer: str, topic: str) -> Subscription:
    """A consumer of `POLICIES` on its topic."""
    names = f"{topic}.{consumer}.retry", f"{topic}.{consumer}.dlq"
    return Subscription(consumer, topic, *names, POLICIES[consumer], BACKOFF)


class NoOp:
    """Does what each job says, and says so in the log."""

    def __init__(self, consumer: str, log: JobLog) -> None:
        self._consumer = consumer
        self._log = log

    async def run(self, job: Job) -> None:
        self._log.started(self._consumer, job.id, job.attempt)
        outcome: Outcome = "outage"
        try:
            await self._do(job)
            outcome = "done"
        except Fenced:
            outcome = "fenced"
            raise
        except Retryable:
            outcome = "failed"
            raise
        finally:
            self._log.ended(self._consumer, job.id, job.attempt, outcome)

    async def _do(self, job: Job) -> None:
        event: dict[str, Any] = job.event
        if event["do"] == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        if event["do"] == "fail" and job.attempt <= event["times"]:
            raise Retryable("told to fail")
        async with job.transaction() as conn:
            await conn.execute("insert into effects (job, pid) values (%s, %s)", (job.id, os.getpid()))

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        """Nothing to note."""

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        await conn.execute("insert into ends values (%s, %s, %s)", (job.id, attempts, str(error)))


@asynccontextmanager
async def _consuming(sub: Subscription, settings: ProcessSettings, pool: Pool, log: JobLog) -> AsyncIterator[None]:
    producer = ConfirmedProducer(settings.kafka_bootstrap, "chaos-worker")
    producer.open()
    database = conninfo(settings.database_url, settings.database_password_file, "chaos-presence")
    consumer = FairConsumer(
        sub,
        JsonReader(NoOp(sub.consumer, log)),
        bootstrap=settings.kafka_bootstrap,
        producer=producer,
        pool=pool,
        presence=Presence(database, sub.consumer),
        limits=Limits(drain_seconds=settings.drain_seconds),
        until_done=True,
    )
    await consumer.open()
    try:
        yield
    finally:
        await consumer.close()
        await producer.close()


async def start(stack: AsyncExitStack, orders: Orders, settings: ProcessSettings) -> None:
    """Join both groups."""
    pool = make_pool(settings, "chaos-worker")
    stack.push_async_callback(pool.close)
    await pool.open()
    log = JobLog(Path(orders.logs))
    for consumer, topic in orders.topics.items():
        await stack.enter_async_context(_consuming(subscription(consumer, topic), settings, pool, log))


def main() -> None:
    """Run until SIGTERM, as the services' workers do."""
    orders = Orders(**json.loads(sys.argv[1]))
    settings = ProcessSettings.model_validate(
        {
            "database_url": orders.database_url,
            "database_password_file": orders.password_file,
            "database_pool": 16,
            "kafka_bootstrap": orders.bootstrap,
            "drain_seconds": 5.0,
        }
    )
    process.run("chaos-worker", settings, lambda stack: start(stack, orders, settings))


if __name__ == "__main__":
    main()
