"""Topics of one consumer and a database with the ledger, for the tests of this room."""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from psycopg_pool import AsyncConnectionPool

from messaging.database import Pool
from messaging.migrate import migrate
from messaging.policy import Backoff, Policy, Subscription
from tests.fixtures.stack import Database
from tests.messaging.harness import subscription


@pytest.fixture
def source(topic: Callable[..., str]) -> Callable[..., Subscription]:
    """Make a topic with its retry and dead-letter topics, and a subscription to it."""

    def make(partitions: int = 1, policy: Policy | None = None, backoff: Backoff | None = None) -> Subscription:
        sub = subscription(topic(partitions), policy, backoff)
        topic(partitions, name=sub.retry_topic)
        topic(partitions, {"max.message.bytes": str(1_048_588 + 65_536)}, sub.dead_letter_topic)
        return sub

    return make


@pytest_asyncio.fixture
async def ledger_pool(database: Database) -> AsyncIterator[Pool]:
    migrate(database.conninfo, [], "postgres")
    pool: Pool = AsyncConnectionPool(database.conninfo, min_size=2, max_size=10, open=False)
    await pool.open()
    yield pool
    await pool.close()
