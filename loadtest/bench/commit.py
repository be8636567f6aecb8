"""From a transaction's commit to a consumer that has its event, beside a commit and a produce by hand.

The loop beside it is what programs without an outbox do. It loses the event when it dies in between; in time it is
the least that can be asked for.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import Producer

from loadtest.bench import bare, rooms
from loadtest.bench.figures import Round, Row, at_most, middle_and_slow
from loadtest.bench.pace import Stop, apart, milliseconds, send_steadily, wait_until
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging import outbox
from messaging.message import Envelope
from messaging.relay import Relay

KEYS = 50
_PLAIN = outbox.INSERT.replace("INSERT INTO outbox ", "INSERT INTO bench_plain ")

Connection = psycopg.Connection[tuple[Any, ...]]
Now = Callable[[], None]


def rows(_sizes: Sizes) -> Sequence[Row]:
    """Median and p99, in milliseconds from sending COMMIT."""
    name, beside = "relay: commit to consumer", "commit + produce"
    return [
        Row("commit.p50", f"{name}, p50", "ms", beside, at_most(10)),
        Row("commit.p99", f"{name}, p99", "ms", beside),
    ]


@asynccontextmanager
async def opened(servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """One relay, one writer and one bare consumer for all rounds."""
    with (
        rooms.topics(servers.kafka, 1) as [topic],
        rooms.database(servers.admin) as conninfo,
        psycopg.connect(conninfo) as connection,
    ):
        connection.execute("CREATE TABLE bench_plain (LIKE outbox INCLUDING ALL)")
        connection.commit()
        relay, arrivals = Relay(conninfo, servers.kafka, "bench"), bare.Arrivals(servers.kafka, topic)
        client = bare.relay_producer(servers.kafka)
        try:
            relay.start()
            await apart(arrivals.open)
            await apart(lambda stop: wait_until(lambda: relay.leading, "the relay does not lead", stop))

            async def take() -> Round:
                through = partial(_through_outbox, connection, topic)
                by_hand = partial(_by_hand, connection, client, topic)
                value = await apart(partial(_measure, through, arrivals, sizes))
                return middle_and_slow("commit", value, await apart(partial(_measure, by_hand, arrivals, sizes)))

            yield take
        finally:
            arrivals.close()
            relay.stop()
            connection.rollback()


def event(topic: str, number: int) -> Envelope:
    """An event that carries its number."""
    return Envelope(topic, f"bench:{number % KEYS}", "bench.happened", 1, b"%d" % number, "bench", f"{number}")


def _measure(send: Callable[[int, Now], None], arrivals: bare.Arrivals, sizes: Sizes, stop: Stop) -> list[float]:
    arrived = arrivals.begin()
    return milliseconds(send_steadily(send, sizes.sent, sizes.rate, stop), arrived, stop)


def _through_outbox(connection: Connection, topic: str, number: int, now: Now) -> None:
    connection.execute(outbox.INSERT, outbox.parameters([event(topic, number)]))
    now()
    connection.commit()


def _by_hand(connection: Connection, client: Producer, topic: str, number: int, now: Now) -> None:
    said = event(topic, number)
    connection.execute(_PLAIN, outbox.parameters([said]))
    now()
    connection.commit()
    client.produce(topic, said.payload, said.key, headers=[("ce_id", str(said.id).encode())])
    client.poll(0)
