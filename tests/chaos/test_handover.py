"""A partition changes hands while the database is away: what its old owner could not give back is not lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from messaging.consumer import Limits
from messaging.database import Pool
from messaging.errors import Outage
from messaging.job import Job
from messaging.migrate import migrate
from messaging.policy import Policy, Subscription
from tests.fixtures.outbox import Proxy, host_of
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import Recording, committed, consuming, send, subscription, until

PARTITIONS = 4


@dataclass
class Worker:
    """A consumer whose way to the database can be cut."""

    proxy: Proxy
    handler: Recording


@asynccontextmanager
async def working(infra: Infra, database: Database, sub: Subscription, handler: Recording) -> AsyncIterator[Worker]:
    proxy = Proxy(host_of(database.conninfo), kafka=False)
    host, port = proxy.address.split(":")
    conninfo = make_conninfo(database.conninfo, host=host, port=port)
    pool: Pool = AsyncConnectionPool(conninfo, min_size=1, max_size=4, open=False, timeout=1.0)
    try:
        await pool.open()
        limits = Limits(drain_seconds=3.0)
        async with consuming(infra.kafka_bootstrap, sub, handler, pool=pool, conninfo=conninfo, limits=limits):
            yield Worker(proxy, handler)
    finally:
        await pool.close()
        proxy.close()


async def test_what_could_not_be_given_back_is_given_back_later(
    infra: Infra, database: Database, topic: Callable[..., str]
) -> None:
    migrate(database.conninfo, [], "postgres")
    sub = subscription(topic(PARTITIONS), Policy(per_key=2, total=20, lend=True))
    topic(PARTITIONS, name=sub.retry_topic)
    topic(PARTITIONS, name=sub.dead_letter_topic)
    held = asyncio.Event()

    async def wait_and_fail(_job: Job) -> None:
        await held.wait()
        raise Outage("The database is away.", "database")

    async def nothing(_job: Job) -> None:
        """A no-op job."""

    for number in range(PARTITIONS):
        send(infra.kafka_bootstrap, sub.topic, [(f"acme:s{number}", {})], partition=number)
    async with working(infra, database, sub, Recording(wait_and_fail)) as old:
        await until(lambda: len(old.handler.starts) == PARTITIONS, 30, "all run")
        async with working(infra, database, sub, Recording(nothing)) as new:
            # The newcomer is known to the ledger; now neither reaches the database, and half the partitions move.
            old.proxy.cut()
            new.proxy.cut()
            held.set()
            await asyncio.sleep(1.5)
            old.proxy.heal()
            await asyncio.sleep(1.5)
            new.proxy.heal()
            await until(lambda: len(new.handler.starts) > 0, 30, "the new owner runs what moved to it")
            old.handler.work = nothing
            await until(lambda: committed(infra.kafka_bootstrap, sub, PARTITIONS) == PARTITIONS, 30, "all is done")
    with database.connect() as conn:
        assert conn.execute("select distinct state, failures, strikes from ledger").fetchall() == [("done", 0, 0)]
