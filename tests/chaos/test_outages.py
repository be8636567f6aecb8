"""Servers that are away for a while: work waits, nothing is set aside or refused, and it goes on by itself."""

import asyncio
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from loadtest.faults import Terms
from loadtest.provider import ProviderProcess
from loadtest.scenario import Scenario
from messaging import message
from messaging.deadletter import DEAD_REASON
from messaging.message import headers_to_dict
from messaging.policy import Subscription
from messaging.producer import producer_config
from schemas import topics
from schemas.events import DocumentReadingRequested
from stack import control
from tests.chaos.documents import DocumentsLoad
from tests.chaos.filing import Plan
from tests.chaos.records import Fault, Kind, Strike
from tests.chaos.requests import RequestsLoad
from tests.chaos.stage import keep_logs, own_stack
from tests.chaos.strikes import Striker
from tests.messaging.harness import read_all, until

SENDERS = ("ana", "ben", "chi", "dee")
DOCUMENTS = 300
PER_SECOND = 8
REQUESTS = 2 * DOCUMENTS
PARTITIONS = 6
UNKNOWN_SCHEMA = 987_654_321


@pytest.mark.long
async def test_what_was_away_comes_back_to_work_that_waited(tmp_path: Path) -> None:
    """Kafka, Postgres, the registry and the process that notifies in turn, while documents and requests come in."""
    async with ProviderProcess(Terms(seed=5, mean=0.2)) as provider:
        given = {"WORKBOT_MODEL_URL": provider.model_url, "WORKBOT_FETCH_ALLOW": provider.address}
        with own_stack(services=True, environment=given) as data_dir:
            scenario = Scenario(SENDERS, (DOCUMENTS // len(SENDERS),) * len(SENDERS), broken=0, seed=5)
            load = DocumentsLoad(
                control.endpoints(data_dir),
                provider,
                tmp_path,
                plan=list(scenario.plan()),
                tenant="outages",
                seed=5,
            )
            plan = Plan("outages-requests", REQUESTS, before=0)
            requests = RequestsLoad(control.endpoints(data_dir), tmp_path / "requests", plan)
            (tmp_path / "requests").mkdir()
            try:
                async with load, requests:
                    await _outages(data_dir, load, requests)
            finally:
                keep_logs(data_dir, tmp_path / "logs")


async def _outages(data_dir: Path, load: DocumentsLoad, requests: RequestsLoad) -> None:
    kafka = control.endpoints(data_dir).kafka
    sub = topics.load().subscription(DocumentReadingRequested.TOPIC, "reader")
    striker = Striker(data_dir, requests.workers, load.leaders)
    coming_in = asyncio.create_task(_come_in(load, requests))
    try:
        await _more_end(load, 10)
        broker = await _away(striker, 1, "broker-away", 12.0)
        await striker.all_back()
        await _more_end(load, 30)
        await _away(striker, 2, "postgres-away", 8.0)
        await striker.all_back()
        await _more_end(load, 20)
        registry = await striker.strike(Fault(3, "registry-away", 0.0, seconds=8.0))
        await asyncio.to_thread(_send_undecodable, kafka, sub)
        await asyncio.sleep(7.0)
        assert read_all(kafka, sub.dead_letter_topic, PARTITIONS) == [], "what cannot be looked up now is not dead"
        await striker.all_back()
        await striker.strike(Fault(4, "worker", 0.0))
        await striker.all_back()
        load.release(DOCUMENTS)
        requests.release(REQUESTS)
        await _more_end(load, DOCUMENTS - await load.progress())
        await _settled(requests)
    finally:
        coming_in.cancel()
        await striker.release()
    assert registry.back_at is not None
    found = await load.find(striker.strikes, time.time())
    assert found.ended == DOCUMENTS
    assert found.broken(quick_servers=False) == []
    told = await requests.find(striker.strikes, time.time())
    assert told.ended == REQUESTS
    assert told.broken(quick_servers=False) == []
    await until(
        lambda: bool(read_all(kafka, sub.dead_letter_topic, PARTITIONS)), 30, "its letter, now it can be told"
    )
    letters = [headers_to_dict(one.headers()) for one in read_all(kafka, sub.dead_letter_topic, PARTITIONS)]
    assert [letter[DEAD_REASON] for letter in letters] == [b"unknown_event"], "only what nobody can ever read"
    answered = [
        sent.accepted_at - sent.posted_at
        for sent in load.submitter.sent
        if sent.accepted_at is not None and broker.at < sent.posted_at < broker.released_at
    ]
    assert len(answered) >= PER_SECOND * 6
    assert max(answered) < 5.0, "a 202 does not wait for Kafka"


async def _come_in(load: DocumentsLoad, requests: RequestsLoad) -> None:
    """Documents at a steady pace, all through the outages, and two requests with each."""
    for number in range(1, DOCUMENTS + 1):
        load.release(number)
        requests.release(2 * number)
        await asyncio.sleep(1 / PER_SECOND)


async def _settled(requests: RequestsLoad) -> None:
    """Wait until every request's team was told."""
    deadline = time.monotonic() + 60.0
    while not await requests.settled():
        assert time.monotonic() < deadline, f"the teams of {await requests.progress()} were told, not of {REQUESTS}"
        await asyncio.sleep(0.1)


async def _more_end(load: DocumentsLoad, more: int) -> None:
    """Wait until so many more documents have ended."""
    wanted = await load.progress() + more
    deadline = time.monotonic() + 40.0
    while await load.progress() < wanted:
        assert time.monotonic() < deadline, f"{await load.progress()} have ended, not {wanted}"
        await asyncio.sleep(0.1)


async def _away(striker: Striker, number: int, kind: Kind, seconds: float) -> Strike:
    """Keep a server away for so long."""
    strike = await striker.strike(Fault(number, kind, 0.0, seconds=seconds))
    await asyncio.sleep(seconds)
    return strike


def _send_undecodable(kafka: str, sub: Subscription) -> None:
    """A job whose schema only the registry could know, or deny."""
    producer = Producer(producer_config(kafka, "chaos-test"))
    headers: list[tuple[str, str | bytes | None]] = [
        (message.ID, b"undecodable"),
        (message.TYPE, DocumentReadingRequested.TYPE.encode()),
        (message.VERSION, str(DocumentReadingRequested.MAJOR).encode()),
    ]
    value = b"\0" + UNKNOWN_SCHEMA.to_bytes(4, "big") + b"whatever"
    producer.produce(sub.topic, value=value, key="other:somebody", headers=headers)
    assert producer.flush(10) == 0
