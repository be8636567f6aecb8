"""How fast the relay carries a backlog of the outbox, beside a cursor and a producer without a relay."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import psycopg
from prometheus_client import REGISTRY

from loadtest.bench import bare, rooms
from loadtest.bench.figures import Round, Row, at_least
from loadtest.bench.pace import Stop, apart, check, wait_until
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging.relay import Relay

KEYS = 1_000
PAYLOAD_BYTES = 300
_BATCH = 1_000

_FILL = """
INSERT INTO outbox (id, topic, key, type, version, payload, source, subject)
SELECT gen_random_uuid(), %s, 'bench:' || (i %% %s), 'bench.happened', 1, decode(repeat('ab', %s), 'hex'), 'bench',
    i::text
FROM generate_series(%s::int, %s::int) AS i
"""


def rows(sizes: Sizes) -> Sequence[Row]:
    """One: rows a second."""
    name = f"relay: backlog of {sizes.rows:,} rows"
    return [Row("backlog", name, "rows/s", "cursor + produce", at_least(0.6, of="ratio"))]


@asynccontextmanager
async def opened(servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """Every round carries the same rows again: a relay of a new name begins at the first."""
    with rooms.topics(servers.kafka, 1) as [topic], rooms.database(servers.admin) as conninfo:
        await apart(lambda stop: _fill(conninfo, topic, sizes.rows, stop))

        async def take() -> Round:
            value = await apart(lambda stop: _relay_rate(conninfo, servers.kafka, sizes.rows, stop))
            beside = await apart(lambda stop: bare.read_and_produce_rate(conninfo, servers.kafka, sizes.rows, stop))
            return {"backlog": (value, beside)}

        yield take


def _fill(conninfo: str, topic: str, count: int, stop: Stop) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for first in range(0, count, _BATCH):
            check(stop)
            last = min(first + _BATCH, count) - 1
            connection.execute(_FILL, [topic, KEYS, PAYLOAD_BYTES, first, last])
        connection.execute("VACUUM ANALYZE outbox")


def _relay_rate(conninfo: str, bootstrap: str, count: int, stop: Stop) -> float:
    """From taking the lead to the last row's confirmation."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    relay = Relay(conninfo, bootstrap, name)
    relay.start()
    try:
        wait_until(lambda: relay.leading, "the relay does not lead", stop, pause=0.001)
        begun = time.perf_counter()
        wait_until(lambda: _published(name) >= count, "the relay has not carried every row", stop)
        return count / (time.perf_counter() - begun)
    finally:
        relay.stop()


def _published(name: str) -> float:
    return REGISTRY.get_sample_value("workbot_relay_published_total", {"relay": name}) or 0.0
