"""Requests a second, each with its event, beside the same without the event: over HTTP, and the bare statement.

Both take turns of a fraction of a second over as many connections, for the machine's own speed changes from second to
second. A relay in a process of its own, as in production, carries the events away while they come; a turn begins when
all of the turns before are on Kafka, and is counted from when all are at their pace.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial

import psycopg

from loadtest.bench import filing, rooms, serving
from loadtest.bench.figures import Pair, Round, Row, at_least
from loadtest.bench.pace import PATIENCE_SECONDS
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging.bell import LOCK
from messaging.database import Connection
from messaging.errors import Outage
from messaging.message import Key
from messaging.registry import Registry
from schemas.events import RequestCreated

CONNECTIONS = 20
SENDERS = 50
AT_ONCE = 8
"""Requests in one statement where that is measured alone: about what so many connections come to."""
CLERKS = 2
"""Connections there."""
TURNS = 8
"""In a round, of each kind; each counts for a sixth of the seconds."""

_SLEEPS = b"""
select from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted
    and classid = %s and objid = %s and database = (select oid from pg_database where datname = current_database())
"""

Turn = Callable[[float], Awaitable[float]]
"""Requests a second over so many seconds."""


def rows(_sizes: Sizes) -> Sequence[Row]:
    """As they are served, and as the database takes them from a client that does nothing else."""
    promise = at_least(0.9, of="ratio")
    return [
        Row("requests.served", "POST /api/requests with event", "requests/s", "without event", promise),
        Row("requests.lone", "the same, one after the other", "requests/s", "without event"),
        Row("requests.filed", f"its statement alone, {AT_ONCE} at once, with event", "requests/s", "without event"),
    ]


@asynccontextmanager
async def opened(servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """A database as the gateway's, a relay for it, and two APIs over it."""
    async with AsyncExitStack() as stack:
        [topic] = stack.enter_context(rooms.topics(servers.kafka, 1))
        conninfo = stack.enter_context(rooms.database(servers.admin, [filing.MIGRATIONS]))
        registry = Registry(servers.registry)
        stack.push_async_callback(registry.close)
        codec = filing.Rerouted(registry, topic)
        await codec.prepare([RequestCreated])
        place = serving.Place(conninfo, servers.kafka, servers.registry, topic, servers.token_secret)
        stack.enter_context(serving.relay_process(place))
        ports = [stack.enter_context(serving.api_process(place, with_event=event)) for event in (True, False)]
        observer = await _connected(stack, conninfo)
        clerks = [await _connected(stack, conninfo) for _ in range(CLERKS)]
        served, lone = (
            [partial(serving.rate, port, servers.token_secret, connections) for port in ports]
            for connections in (CONNECTIONS, 1)
        )
        files = [partial(filing.create, conn, codec) for conn in clerks]
        filed = [partial(_rate, files, nullcontext), partial(_rate, files, filing.no_events)]

        async def in_turns(ways: Sequence[Turn], count: int) -> Pair:
            """The mean rates of both ways; each begins in every second pair of turns."""
            sums = [0.0, 0.0]
            for number in range(count):
                for way in (0, 1) if number % 2 else (1, 0):
                    await _rested(observer)
                    sums[way] += await ways[way](sizes.seconds / 6)
            return sums[0] / count, sums[1] / count

        async def take() -> Round:
            return {
                "requests.served": await in_turns(served, TURNS),
                "requests.lone": await in_turns(lone, TURNS // 2),
                "requests.filed": await in_turns(filed, TURNS // 2),
            }

        for ways in (served, lone, filed):  # plans and connections are made with the first ones
            await in_turns(ways, 1)
        yield take


async def _rate(
    files: Sequence[Callable[[Key, int], Awaitable[object]]],
    how: Callable[[], AbstractContextManager[None]],
    seconds: float,
) -> float:
    began = time.perf_counter()
    with how():
        counts = await asyncio.gather(*(_clerk(file, began + seconds) for file in files))
    return sum(counts) / (time.perf_counter() - began)


async def _clerk(file: Callable[[Key, int], Awaitable[object]], until: float) -> int:
    filed = 0
    while time.perf_counter() < until:
        await file(Key(filing.TENANT, f"s{filed // AT_ONCE % SENDERS}"), AT_ONCE)
        filed += AT_ONCE
    return filed


async def _rested(observer: Connection) -> None:
    """Until the relay sleeps: it has carried every event."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while await (await observer.execute(_SLEEPS, LOCK)).fetchone() is None:
        if time.monotonic() >= deadline:
            raise Outage(f"Not within {PATIENCE_SECONDS:.0f} s: the relay has not carried every event.", "bench")
        await asyncio.sleep(0.005)


async def _connected(stack: AsyncExitStack, conninfo: str) -> Connection:
    connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
    stack.push_async_callback(connection.close)
    return connection
