"""Sending back: once, byte for byte, to that consumer's own retry topic, and finished after a crash."""

import asyncio
import json
import os
import random
import uuid

import pytest
from confluent_kafka import Message
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from messaging.database import Pool
from messaging.deadletter import Hop, original_headers
from messaging.errors import NotRetryable
from messaging.job import Job
from messaging.message import header_pairs
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from services.gateway import sender as sending_back
from services.gateway.decisions import Decisions
from services.gateway.letters import Headers
from services.gateway.records import Filter, Listed, Sight
from services.gateway.store import staff, worker
from tests.fixtures.outbox import Proxy, host_of
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.gateway.letterbox import Raw, dead, letters_of, projecting, put, sending, stored
from tests.messaging.harness import Recording, consuming, read_all, subscription, until
from web.problems import Problem

TRIPS = 10


async def letters(pool: Pool, sight: Sight, **wanted: object) -> list[Listed]:
    async with pool.connection() as conn:
        return await staff.page(conn, sight, Filter(**wanted), below=None, limit=200)  # type: ignore[arg-type]


def states(home: Home, source: str) -> set[object]:
    return {row[0] for row in home.rows("select distinct state from dead_letters where source = %s", source)}


async def test_ten_trips_keep_every_byte_and_the_size(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    rng = random.Random(7)
    sub = subscription(source)
    originals: list[Raw] = []
    for number in range(8):
        names = rng.choices(["a", "b", "ce_type", "", "ü", "traceparent"], k=rng.randrange(0, 9))
        headers: Headers = [(name, rng.choice([None, b"", rng.randbytes(20)])) for name in names]
        key = rng.randbytes(12) if number % 2 else f"{tenant}:s{number}".encode()
        value = [None, b"", rng.randbytes(200_000), rng.randbytes(1000)][number % 4]
        originals.append((key, value, [*headers, ("ce_id", str(uuid.uuid4()).encode())]))
    operator = Sight(tenant, operator=True)
    decisions = Decisions(pool, [(source, "reader")])
    put(infra, source, originals)
    handler = Recording(_never)
    async with (
        projecting(infra, pool, source),
        sending(infra, pool, source),
        consuming(infra.kafka_bootstrap, sub, handler, pool=pool, conninfo=home.conninfo),
    ):
        for trip in range(TRIPS + 1):
            await until(lambda: stored(home, source) == len(originals) * (trip + 1), what=f"trip {trip}")  # noqa: B023
            for unowned in (True, False):
                for letter in await letters(pool, operator, source=source, state="open", unowned=unowned):
                    assert letter.generation == trip
                    if trip < TRIPS:
                        await decisions.send_back(operator, letter.id, "ann")
    assert handler.starts == [], "none of them can be read"
    trips: dict[tuple[object, ...], list[Message]] = {}
    for record in read_all(infra.kafka_bootstrap, sub.dead_letter_topic, 3):
        original = (record.key(), record.value(), tuple(original_headers(record.headers())))
        trips.setdefault(original, []).append(record)
    assert trips.keys() == {(key, value, tuple(headers)) for key, value, headers in originals}
    for records in trips.values():
        assert sorted(Hop(record.headers()).generation for record in records) == list(range(TRIPS + 1))
        assert len({size(record) for record in records}) == 1
    assert len(read_all(infra.kafka_bootstrap, sub.retry_topic, 3)) == TRIPS * len(originals)


async def _never(_job: Job) -> None:
    raise NotRetryable("never")


def size(record: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in header_pairs(record.headers()))
    return len(record.key() or b"") + len(record.value() or b"") + headers


async def test_a_job_sent_back_runs_again_once_with_its_attempts_anew(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    broken = True

    async def work(_job: Job) -> None:
        if broken:
            raise NotRetryable("broken", "broken")

    handler, sub = Recording(work), subscription(source)
    decisions = Decisions(pool, [(source, "reader")])
    put(infra, source, [(f"{tenant}:ann".encode(), json.dumps(1).encode(), [("ce_id", b"job-1")])])
    async with (
        projecting(infra, pool, source),
        sending(infra, pool, source),
        consuming(infra.kafka_bootstrap, sub, handler, pool=pool, conninfo=home.conninfo),
    ):
        await until(lambda: stored(home, source) == 1)
        broken = False
        (letter,) = await letters(pool, Sight(tenant), source=source)
        assert (letter.reason, letter.attempts, letter.state) == ("broken", 1, "open")
        await decisions.send_back(Sight(tenant), letter.id, "ann")
        await until(lambda: len(handler.starts) == 2, what="it runs again")
        await until(lambda: states(home, source) == {"sent"})
        # A sweeper that repeats what was sent: the ledger knows (id, generation).
        home.change("update dead_letters set state = 'sending', sent_at = null where id = %s", letter.id)
        await until(lambda: states(home, source) == {"sent"})
        await until(lambda: len(read_all(infra.kafka_bootstrap, sub.retry_topic, 3)) == 2)
        await asyncio.sleep(0.5)
    assert [(start[0], start[1]) for start in handler.starts] == [("job-1", 1), ("job-1", 1)]
    outcomes = home.rows("select generation, state from ledger where message_id = 'job-1' order by generation")
    assert outcomes == [(0, "dead"), (1, "done")]


async def test_of_a_hundred_at_once_one_is_first(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    decisions = Decisions(pool, [(source, "reader")])
    put(infra, letters_of(source).name, [dead(tenant)])
    async with projecting(infra, pool, source), sending(infra, pool, source):
        await until(lambda: stored(home, source) == 1)
        (letter,) = await letters(pool, Sight(tenant), source=source)
        answers = await asyncio.gather(
            *(decisions.send_back(Sight(tenant), letter.id, f"admin-{n}") for n in range(100)), return_exceptions=True
        )
        first = [answer for answer in answers if isinstance(answer, Listed)]
        others = [answer for answer in answers if isinstance(answer, Problem)]
        assert (len(first), len(others)) == (1, 99)
        assert {problem.status for problem in others} == {409}
        assert {problem.detail.split(" at ")[0] for problem in others} == {
            f"This letter was sent back by {first[0].decided_by}"
        }
        await until(lambda: states(home, source) == {"sent"})
        await asyncio.sleep(0.5)
    assert len(read_all(infra.kafka_bootstrap, subscription(source).retry_topic, 3)) == 1


async def test_what_a_crash_left_is_finished_by_the_next(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_back, "LEASE_SECONDS", 1.0)
    async with projecting(infra, pool, source):
        put(infra, letters_of(source).name, [dead(tenant) for _ in range(5)])
        await until(lambda: stored(home, source) == 5)
    await Decisions(pool, [(source, "reader")]).many(Sight(tenant), Filter(source=source), "sending", "ann")
    async with pool.connection() as conn:
        claimed = await worker.claim(conn, limit=3, max_bytes=1_000_000, lease_seconds=1.0)
        assert len(claimed) == 3, "three of them were being sent when the process died"
    async with sending(infra, pool, source):
        await until(lambda: states(home, source) == {"sent"}, 5.0)
    assert len(read_all(infra.kafka_bootstrap, subscription(source).retry_topic, 3)) == 5


async def test_both_servers_may_be_away_while_letters_go_back(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_back, "LEASE_SECONDS", 0.6)
    kafka, postgres = Proxy(infra.kafka_bootstrap), Proxy(host_of(home.conninfo), kafka=False)
    conninfo = make_conninfo(home.conninfo, port=postgres.address.rpartition(":")[2])
    through: Pool = AsyncConnectionPool(conninfo, min_size=1, max_size=2, open=False, timeout=1.0)
    decisions = Decisions(pool, [(source, "reader")])
    try:
        async with projecting(infra, pool, source), through, sending(infra, through, source, bootstrap=kafka.address):
            put(infra, letters_of(source).name, [dead(tenant, reason="first"), dead(tenant, reason="second")])
            await until(lambda: stored(home, source) == 2)
            kafka.cut()
            await decisions.many(Sight(tenant), Filter(source=source, reason="first"), "sending", "ann")
            await asyncio.sleep(1.5)
            assert states(home, source) == {"open", "sending"}
            kafka.heal()
            await until(lambda: states(home, source) == {"open", "sent"}, what="sent once Kafka is back")
            postgres.cut()
            await decisions.many(Sight(tenant), Filter(source=source, reason="second"), "sending", "ann")
            await asyncio.sleep(0.7)
            postgres.heal()
            await until(lambda: states(home, source) == {"sent"}, what="sent once Postgres is back")
    finally:
        kafka.close()
        postgres.close()
    # Longer away than a lease, and still each went once: the process renews what it is at.
    assert len(read_all(infra.kafka_bootstrap, subscription(source).retry_topic, 3)) == 2


async def test_a_letter_kafka_will_not_take_is_open_again_and_says_why(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    # As large as the dead-letter topic admits, without the headers of ours that the retry topic needs room for.
    huge: Raw = (f"{tenant}:ann".encode(), os.urandom(MAX_RECORD_BYTES + 2 * HEADROOM_BYTES - 100), [])
    decisions = Decisions(pool, [(source, "reader")])
    put(infra, letters_of(source).name, [huge])
    async with projecting(infra, pool, source), sending(infra, pool, source):
        await until(lambda: stored(home, source) == 1)
        (letter,) = await letters(pool, Sight(tenant), source=source)
        await decisions.send_back(Sight(tenant), letter.id, "ann")
        await until(lambda: states(home, source) == {"open"})
        (letter,) = await letters(pool, Sight(tenant), source=source)
        assert letter.send_error is not None
        assert "refuses" in letter.send_error
        assert (letter.decided_by, letter.decided_at) == (None, None)
        assert (await decisions.discard(Sight(tenant), letter.id, "bob")).state == "discarded"


async def test_many_at_once_by_filter(infra: Infra, home: Home, pool: Pool, source: str, tenant: str) -> None:
    async with projecting(infra, pool, source):
        batch = [dead(tenant, sender=f"s{n % 4}") for n in range(2400)] + [
            dead("other", sender="s1") for _ in range(5)
        ]
        put(infra, letters_of(source).name, batch)
        await until(lambda: stored(home, source) == len(batch))
    decisions, sight = Decisions(pool, [(source, "reader")]), Sight(tenant)
    assert await decisions.many(sight, Filter(source=source, owner="s1"), "discarded", "ann") == 600
    assert await decisions.many(sight, Filter(source=source, owner="s1"), "sending", "ann") == 0
    assert await decisions.many(sight, Filter(source=source), "sending", "ann") == 1800
    async with sending(infra, pool, source):
        await until(lambda: "sending" not in states(home, source))
    counts = home.rows(
        "select tenant = %s, state, count(*) from dead_letters where source = %s group by 1, 2 order by 1, 2",
        tenant,
        source,
    )
    assert counts == [(False, "open", 5), (True, "discarded", 600), (True, "sent", 1800)]
    assert len(read_all(infra.kafka_bootstrap, subscription(source).retry_topic, 3)) == 1800


async def test_a_letter_of_a_consumer_that_is_gone_stays(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    async with projecting(infra, pool, source):
        put(infra, letters_of(source).name, [dead(tenant)])
        await until(lambda: stored(home, source) == 1)
    (letter,) = await letters(pool, Sight(tenant), source=source)
    decisions = Decisions(pool, [("other", "reader")])
    with pytest.raises(Problem, match="has no consumer reader any more"):
        await decisions.send_back(Sight(tenant), letter.id, "ann")
    assert await decisions.many(Sight(tenant), Filter(source=source), "sending", "ann") == 0
    assert states(home, source) == {"open"}
