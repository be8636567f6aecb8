"""Dead-letter topics become rows: every record, once, whatever it is, through outages of both servers."""

import asyncio
import uuid
from collections.abc import Callable

from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from messaging.database import Pool
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from services.gateway.records import Filter, Sight
from services.gateway.store import staff
from tests.fixtures.outbox import Proxy, host_of
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.gateway.letterbox import Raw, dead, letters_of, projecting, put, stored
from tests.messaging.harness import until
from tests.messaging.test_garbled import WARM, put_garbled

LARGEST = MAX_RECORD_BYTES + 2 * HEADROOM_BYTES


async def test_garbage_is_stored_as_it_is_and_the_next_letter_follows(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    topic = letters_of(source).name
    overhead = 100
    garbage: list[Raw] = [
        (None, None, []),
        (None, b"", [("", None), ("", b"")]),
        (
            b"\xff\xfe",
            b"\x00" * 50,
            [("workbot_generation", b"\xff"), ("workbot_origin", b"\x00"), ("ce_id", b"\xff")],
        ),
        (b"acme", b"no tenant", [("workbot_dead_at_ms", b"9" * 15), ("workbot_dead_error", b"\xff")]),
        (b"k" * 100_000, b"a long key", [("ce_id", b"i" * 100_000)]),
        (f"{tenant}:ann".encode(), b"x" * (LARGEST - overhead), []),
        (f"{tenant}:ann".encode(), b"many headers", [(f"h{n}", None if n % 2 else b"v") for n in range(1000)]),
    ]
    async with projecting(infra, pool, source) as projector:
        put(infra, topic, [*garbage, dead(tenant)])
        await until(lambda: stored(home, source) == len(garbage) + 1, what="all are stored")
        assert projector.healthy()
    async with pool.connection() as conn:
        found = await staff.page(conn, Sight("-", True), Filter(unowned=True, source=source), below=None, limit=50)
        owned = await staff.page(conn, Sight(tenant), Filter(source=source), below=None, limit=50)
        assert len(found) == 5
        assert {letter.reason for letter in found} == {"unknown"}
        assert len(owned) == 3
        kept = set()
        for letter in [*found, *owned]:
            content = await staff.content(conn, Sight(tenant, True), letter.id, 2_000_000)
            assert content is not None
            kept.add((content.key, content.start, tuple(content.names or ()), tuple(content.values or ())))
    for key, value, headers in garbage:
        ours = ("workbot_generation", "workbot_origin", "workbot_dead_at_ms", "workbot_dead_error")
        rest = [pair for pair in headers if pair[0] not in ours]
        assert (key, value, tuple(n.encode() for n, _ in rest), tuple(v for _, v in rest)) in kept


async def test_a_header_no_client_can_read_stops_nothing(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    topic = letters_of(source).name
    put(infra, topic, [dead(tenant) for _ in range(WARM)])
    await asyncio.to_thread(put_garbled, infra, topic, f"{tenant}:ann".encode(), b"value", b"\xff\xfe")
    put(infra, topic, [dead(tenant)])
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == WARM + 2)
    query = "select tenant, value, header_values from dead_letters where source = %s and header_names is null"
    assert home.rows(query, source) == [(tenant, b"value", None)]


async def test_a_letter_is_stored_once_however_often_it_is_read_or_written(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    topic = letters_of(source).name
    letter, again = dead(tenant, message_id="m-1"), dead(tenant, message_id="m-1", generation=1)
    garbage: Raw = (None, b"garbage", [])
    put(infra, topic, [letter, letter, again, garbage])
    for _ in range(2):
        # A group of its own starts from the beginning: as after a crash before the offsets were committed.
        async with projecting(infra, pool, source):
            await until(lambda: stored(home, source) >= 3)
            put(infra, topic, [dead(tenant, message_id="last")])
            await until(lambda: stored(home, source) >= 4)
    assert stored(home, source) == 4


async def test_a_second_start_reads_on_where_the_first_stopped(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    group = f"test-{uuid.uuid4()}"
    put(infra, letters_of(source).name, [dead(tenant) for _ in range(50)])
    async with projecting(infra, pool, source, group=group):
        await until(lambda: stored(home, source) == 50)
    home.change("delete from dead_letters where source = %s", source)
    async with projecting(infra, pool, source, group=group):
        put(infra, letters_of(source).name, [dead(tenant, message_id="new")])
        await until(lambda: stored(home, source) == 1)
    assert home.rows("select message_id from dead_letters where source = %s", source) == [("new",)]


async def test_both_servers_may_go_and_come_back(
    infra: Infra, home: Home, source: str, tenant: str, topic: Callable[..., str]
) -> None:
    kafka, postgres = Proxy(infra.kafka_bootstrap), Proxy(host_of(home.conninfo), kafka=False)
    conninfo = make_conninfo(home.conninfo, port=postgres.address.rpartition(":")[2])
    letters = letters_of(source).name
    pool: Pool = AsyncConnectionPool(conninfo, min_size=1, max_size=2, open=False, timeout=1.0)
    try:
        async with pool, projecting(infra, pool, source, bootstrap=kafka.address) as projector:
            put(infra, letters, [dead(tenant)])
            await until(lambda: stored(home, source) == 1)
            postgres.cut()
            put(infra, letters, [dead(tenant)])
            await asyncio.sleep(0.7)
            postgres.heal()
            await until(lambda: stored(home, source) == 2, what="stored once Postgres is back")
            kafka.cut()
            put(infra, letters, [dead(tenant)])
            await asyncio.sleep(0.7)
            assert projector.healthy()
            kafka.heal()
            await until(lambda: stored(home, source) == 3, what="stored once Kafka is back")
    finally:
        kafka.close()
        postgres.close()
