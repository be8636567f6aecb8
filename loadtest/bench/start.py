"""From sending a job to its start, at a steady rate, beside a bare consumer's poll at the same rate.

Sent is before the call that sends: the produce, or the statement that writes the outbox's row and commits it. All
three ways produce with the relay's settings.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Protocol

import psycopg
from confluent_kafka import Producer

from loadtest.bench import bare, rooms
from loadtest.bench.commit import event
from loadtest.bench.figures import Round, Row, at_most, middle_and_slow
from loadtest.bench.nothing import Noting, consuming
from loadtest.bench.pace import Stop, apart, milliseconds, send_steadily, wait_until
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging import outbox
from messaging.relay import Relay

DIRECT_MS, OUTBOX_MS = 2, 8

Connection = psycopg.Connection[tuple[Any, ...]]
Now = Callable[[], None]
Send = Callable[[int, Now], None]


class _Noted(Protocol):
    def begin(self) -> dict[int, float]: ...


def rows(_sizes: Sizes) -> Sequence[Row]:
    """Median and p99 in milliseconds, produced directly and through the outbox; with the ledger, as services run."""
    found = []
    for key, way, limit in (("direct", "produced", DIRECT_MS), ("outbox", "by outbox", OUTBOX_MS)):
        name = f"job sent to started: {way}"
        found += [
            Row(f"start.{key}.p50", f"{name}, p50", "ms", "produce + poll", at_most(limit)),
            Row(f"start.{key}.p99", f"{name}, p99", "ms", "produce + poll"),
        ]
    return found


@asynccontextmanager
async def opened(servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """One fair consumer for all rounds, and a bare one on a topic of its own."""
    async with AsyncExitStack() as stack:
        [sub] = stack.enter_context(rooms.subscriptions(servers.kafka, 1))
        [beside] = stack.enter_context(rooms.topics(servers.kafka, 1))
        conninfo = stack.enter_context(rooms.database(servers.admin))
        writer = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
        relay, noting = Relay(conninfo, servers.kafka, "bench"), Noting()
        stack.callback(relay.stop)
        relay.start()
        arrivals = bare.Arrivals(servers.kafka, beside)
        stack.callback(arrivals.close)
        await apart(arrivals.open)
        await stack.enter_async_context(consuming(sub, noting, servers.kafka, conninfo))
        client = bare.relay_producer(servers.kafka)
        await apart(partial(_first_start, noting, partial(_produce, client, sub.topic)))
        await apart(lambda stop: wait_until(lambda: relay.leading, "the relay does not lead", stop))

        async def measure(send: Send, noted: _Noted) -> list[float]:
            return await apart(partial(_measure, send, noted, sizes))

        async def take() -> Round:
            direct = await measure(partial(_produce, client, sub.topic), noting)
            through = await measure(partial(_write, writer, sub.topic), noting)
            plain = await measure(partial(_produce, client, beside), arrivals)
            return {
                **middle_and_slow("start.direct", direct, plain),
                **middle_and_slow("start.outbox", through, plain),
            }

        yield take


def _first_start(noting: Noting, send: Send, stop: Stop) -> None:
    """The group has been joined once a job has started."""
    started = noting.begin()
    send(0, lambda: None)
    wait_until(lambda: bool(started), "the first job has not started", stop)


def _measure(send: Send, noted: _Noted, sizes: Sizes, stop: Stop) -> list[float]:
    arrived = noted.begin()
    return milliseconds(send_steadily(send, sizes.sent, sizes.rate, stop), arrived, stop)


def _produce(client: Producer, topic: str, number: int, now: Now) -> None:
    said = event(topic, number)
    now()
    client.produce(topic, said.payload, said.key, headers=[("ce_id", str(said.id).encode())])
    client.poll(0)


def _write(connection: Connection, topic: str, number: int, now: Now) -> None:
    said = event(topic, number)
    now()
    connection.execute(outbox.INSERT, outbox.parameters([said]))
