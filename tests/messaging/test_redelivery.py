"""Delivering again what a consumer has had: as new runs, at this consumer only, its position unmoved."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging import redelivery as redeliveries
from messaging.database import Pool
from messaging.errors import Outage
from messaging.job import Job
from messaging.ledger import highest_generation
from messaging.message import Key
from messaging.policy import Policy, Subscription
from messaging.redelivery import ROUND, Redelivery, Stretch, next_generation
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Database, Infra
from tests.messaging.harness import Recording, committed, consuming, read_all, send, subscription, until

ORDERED = Policy(per_key=1, total=5, ordered=True)
JOBS = [(f"acme:{sender}", number) for number in range(20) for sender in ("ann", "ben", "cas")]


async def nothing(_job: Job) -> None:
    """A no-op job."""


async def has_had(infra: Infra, sub: Subscription, pool: Pool, conninfo: str, jobs: int) -> Recording:
    """A consumer that reads until it has run so many, and ends."""
    handler = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, handler, pool=pool, conninfo=conninfo):
        await until(lambda: len(handler.starts) == jobs, what=f"{jobs} runs")
    return handler


def unheard(_passed: int, _copied: int) -> None:
    """Progress that nobody watches."""


async def test_one_senders_events_run_again_in_order_and_the_position_stays(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(2, ORDERED)
    first_ids = send(infra.kafka_bootstrap, sub.topic, JOBS)
    await has_had(infra, sub, ledger_pool, database.conninfo, len(JOBS))
    position = committed(infra.kafka_bootstrap, sub, 2)
    told: list[tuple[int, int]] = []
    with Redelivery(infra.kafka_bootstrap, sub, 2) as redelivery:
        stretches = redelivery.stretches(None)
        assert sum(stretch.end - stretch.first for stretch in stretches) == len(JOBS)
        copied = redelivery.run(stretches, Key("acme", "ann"), ROUND, lambda *at: told.append(at))
    assert copied == 20
    assert told[-1] == (len(JOBS), 20)
    assert told == sorted(told)
    again = await has_had(infra, sub, ledger_pool, database.conninfo, 20)
    ann = [job_id for (key, _), job_id in zip(JOBS, first_ids, strict=True) if key == "acme:ann"]
    assert again.ids() == ann, "the same messages, in their order"
    assert committed(infra.kafka_bootstrap, sub, 2) == position
    async with ledger_pool.connection() as conn:
        assert await highest_generation(conn, sub.consumer) == ROUND
        assert await highest_generation(conn, "somebody else") == 0


async def test_a_redelivery_that_is_repeated_before_anything_ran_delivers_once(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(1, ORDERED)
    send(infra.kafka_bootstrap, sub.topic, JOBS[:9])
    await has_had(infra, sub, ledger_pool, database.conninfo, 9)
    for _ in range(2):
        with Redelivery(infra.kafka_bootstrap, sub, 1) as redelivery:
            redelivery.run(redelivery.stretches(None), None, ROUND, unheard)
    again = Recording(nothing)
    async with consuming(infra.kafka_bootstrap, sub, again, pool=ledger_pool, conninfo=database.conninfo) as consumer:
        send(infra.kafka_bootstrap, sub.topic, [("acme:ann", "last")])
        await until(lambda: len(again.starts) >= 10, what="the copies and the last one")
        await until(lambda: consumer.queue("acme").waiting == 0, what="nothing waits")
    assert len(read_all(infra.kafka_bootstrap, sub.retry_topic)) == 18
    assert len(again.starts) == 10


async def test_what_is_still_before_the_consumer_is_not_copied_and_neither_is_what_is_older(
    infra: Infra, source: Callable[..., Subscription], ledger_pool: Pool, database: Database
) -> None:
    sub = source(1, ORDERED)
    send(infra.kafka_bootstrap, sub.topic, JOBS[:6])
    time.sleep(0.05)
    since = time.time()
    time.sleep(0.05)
    send(infra.kafka_bootstrap, sub.topic, JOBS[6:10])
    with Redelivery(infra.kafka_bootstrap, sub, 1) as redelivery:
        assert redelivery.stretches(None) == [], "it has had nothing"
    await has_had(infra, sub, ledger_pool, database.conninfo, 10)
    send(infra.kafka_bootstrap, sub.topic, JOBS[10:])
    with Redelivery(infra.kafka_bootstrap, sub, 1) as redelivery:
        assert redelivery.stretches(None) == [Stretch(0, 0, 10)]
        assert redelivery.stretches(since) == [Stretch(0, 6, 10)]
        for long_ago in ("1970-01-01", "1969-01-01", "0001-01-01"):
            at = datetime.fromisoformat(long_ago).replace(tzinfo=UTC).timestamp()
            assert redelivery.stretches(at) == [Stretch(0, 0, 10)]
        assert redelivery.stretches(time.time() + 60) == []


async def test_it_is_known_whether_the_consumer_runs(infra: Infra, source: Callable[..., Subscription]) -> None:
    sub = source(1, ORDERED)
    with Redelivery(infra.kafka_bootstrap, sub, 1) as redelivery:
        assert not redelivery.running()
        handler = Recording(nothing)
        send(infra.kafka_bootstrap, sub.topic, JOBS[:1])
        async with consuming(infra.kafka_bootstrap, sub, handler):
            await until(lambda: len(handler.starts) == 1, what="it runs")
            assert redelivery.running()
        await until(lambda: not redelivery.running(), what="its group is empty")


@given(st.integers(0, 90_000), st.integers(0, 4000))
def test_a_generation_is_new_and_leaves_room_for_sending_back(highest: int, days: int) -> None:
    now = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=days)
    chosen = next_generation(highest, now)
    assert chosen > highest
    assert chosen >= days * ROUND
    assert chosen % ROUND == 0


def test_a_consumer_that_is_unknown_has_had_nothing(infra: Infra, topic: Callable[..., str]) -> None:
    with Redelivery(infra.kafka_bootstrap, subscription(topic()), 1) as redelivery:
        assert redelivery.stretches(None) == []
        assert not redelivery.running()


@pytest.mark.parametrize("since", [None, 0.0])
def test_a_topic_that_is_not_there_is_named(infra: Infra, since: float | None) -> None:
    with (
        Redelivery(infra.kafka_bootstrap, subscription("no.such.topic"), 1) as redelivery,
        pytest.raises(Exception, match=r"no\.such\.topic"),
    ):
        redelivery.stretches(since)


def test_without_kafka_it_is_an_outage_and_the_client_itself_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(redeliveries, "_ANSWER_SECONDS", 2.0)
    with (
        pytest.raises(Outage, match="Kafka did not answer when asked to list the groups"),
        Redelivery(f"127.0.0.1:{free_port()}", subscription("things", ORDERED), 1) as redelivery,
    ):
        redelivery.running()
    assert capfd.readouterr() == ("", "")
