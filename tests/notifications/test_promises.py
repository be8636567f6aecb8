"""What issue 5 wants shown of notifications: once per event, whatever comes again; and nothing in anybody's way."""

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import ClassVar

import psycopg
from confluent_kafka.admin import AdminClient

from messaging import deadletter, outbox
from messaging.codec import Codec, Contract
from messaging.database import Pool
from messaging.message import Key
from messaging.readers import EventReader
from messaging.registry import Registry
from schemas import catalog, topics
from schemas.events import NotificationDeliveryRequested, RequestCreated
from services.notifications.handlers import Tell
from services.notifications.parts import TELLERS
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.messaging.harness import consuming, read_all, subscription, until
from tests.notifications.conftest import Start, request
from tests.notifications.kafka import again, caught_up, headers, produce, put, rewind
from tests.notifications.worker import BACKOFF, POLICY

TEAMS = ("it", "hr", "legal", "sales", "facilities")
REQUESTS = next(topics.load().subscription(*names) for names in TELLERS if names[0] == "requests.events")
PARTITIONS = 6


def told(home: Home, tenant: str) -> list[tuple[object, ...]]:
    """Everything a tenant has been told, and every delivery."""
    return home.rows(
        "select n.event_id, n.audience, n.seq, n.id, d.id, d.state, d.attempts"
        " from notifications n left join deliveries d on d.notification = n.id"
        " where n.tenant = %s order by n.seq, d.id",
        tenant,
    )


async def file_at_once(home: Home, codec: Codec, tenant: str, connections: int, each: int) -> dict[str, str]:
    """File requests as the gateway does, a transaction each, from so many connections at once; team by event id."""
    filed: dict[str, str] = {}

    async def file(connection: int) -> None:
        async with await psycopg.AsyncConnection.connect(home.admin) as conn:
            for number in range(each):
                event = request(tenant, f"sender-{connection}", TEAMS[number % len(TEAMS)], f"no. {number}")
                envelope = codec.envelope(
                    event, source="gateway", subject=event.request_id, key=Key(tenant, event.sender)
                )
                async with conn.transaction():
                    await outbox.add(conn, [envelope])
                filed[str(envelope.id)] = event.team

    await asyncio.gather(*(file(connection) for connection in range(connections)))
    return filed


async def test_each_team_is_told_once_whatever_comes_again(
    infra: Infra, home: Home, codec: Codec, start: Start, kafka_admin: AdminClient, tenant: str
) -> None:
    """500 requests from 20 connections; 1,000 repeats of them; two processes at once; a replay of the whole topic;
    and another one after the ledger has forgotten everything."""
    with start() as one, start() as two:
        with one.client("ada", tenant, "admin") as ada:
            # One team's deliveries go where nothing listens, so that they, too, could be made twice.
            hook = {"channel": "webhook", "address": "https://workbot.invalid/", "team": "hr"}
            assert ada.post("/api/notifications/subscriptions", json=hook).status_code == 201
        filed = await file_at_once(home, codec, tenant, 20, 25)
        assert len(filed) == 500
        await until(lambda: len(told(home, tenant)) >= 500, 120, "500 notifications")
        await caught_up(kafka_admin, REQUESTS)
        first = [row[:5] for row in told(home, tenant)]
        assert {row[0]: row[1] for row in first} == filed
        assert [row[2] for row in first] == list(range(1, 501))
        assert sum(row[4] is not None for row in first) == 100

        ours = [
            record
            for record in await asyncio.to_thread(read_all, infra.kafka_bootstrap, REQUESTS.topic, PARTITIONS)
            if (record.key() or b"").startswith(f"{tenant}:".encode())
        ]
        assert len(ours) == 500
        again(infra.kafka_bootstrap, ours * 2)
        await caught_up(kafka_admin, REQUESTS)
        assert [row[:5] for row in told(home, tenant)] == first
        workers = home.rows(
            "select count(distinct worker) from ledger where consumer = %s and state = 'done'", REQUESTS.name
        )
        assert workers == [(2,)], (one.log.read_text(), two.log.read_text())

    for forgetful in (False, True):
        if forgetful:
            home.change("delete from ledger")
        assert await asyncio.to_thread(rewind, kafka_admin, REQUESTS) >= 1500
        with start(), start():
            await caught_up(kafka_admin, REQUESTS)
        assert [row[:5] for row in told(home, tenant)] == first


async def test_what_fails_three_times_is_set_aside_and_passed(
    infra: Infra, home: Home, codec: Codec, topic: Callable[..., str], tenant: str
) -> None:
    """Its second attempt takes the process along, as kill -9 does; the first still counts."""
    sub = subscription(topic(1), POLICY, BACKOFF)
    topic(1, name=sub.retry_topic)
    topic(1, {"max.message.bytes": str(1_048_588 + 65_536)}, sub.dead_letter_topic)

    def envelope(title: str):  # type: ignore[no-untyped-def]
        said = request(tenant, title=title)
        return codec.envelope(said, source="test", subject=said.request_id, key=Key(tenant, "ann"))

    poison, behind = envelope("poison"), envelope("behind it")
    produce(infra.kafka_bootstrap, sub.topic, [poison, behind])

    def state(of: object) -> list[tuple[object, ...]]:
        return home.rows("select state, failures, strikes from ledger where message_id = %s", str(of))

    def worker(dies_at: int) -> "subprocess.Popen[bytes]":
        told = {
            "bootstrap": infra.kafka_bootstrap,
            "registry": infra.registry_url,
            "topic": sub.topic,
            "conninfo": home.conninfo,
            "dies_at": dies_at,
        }
        return subprocess.Popen([sys.executable, "-m", "tests.notifications.worker", json.dumps(told)])

    with worker(dies_at=2) as first:
        await until(lambda: first.poll() is not None, 60, "the process killed itself")
        assert first.returncode == -signal.SIGKILL
    assert state(poison.id) == [("started", 1, 0)]
    assert told(home, tenant) == []

    with worker(dies_at=0) as second:
        await until(lambda: len(told(home, tenant)) == 1, 60, "the one behind it was told")
        second.terminate()
        assert second.wait(30) == 0
    assert state(poison.id) == [("dead", 3, 1)]
    assert told(home, tenant)[0][0] == str(behind.id)
    ((passed_after,),) = home.rows(
        "select extract(epoch from (select started_at from ledger where message_id = %s)"
        " - (select updated_at from ledger where message_id = %s))::float8",
        str(behind.id),
        str(poison.id),
    )
    assert 0 <= float(str(passed_after)) < 1.0
    (letter,) = read_all(infra.kafka_bootstrap, sub.dead_letter_topic)
    pairs = dict(letter.headers() or [])
    assert (pairs["ce_id"], pairs["workbot_dead_attempts"]) == (str(poison.id).encode(), b"3")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestCreatedV2:
    """A major that does not exist yet: the team became teams."""

    TYPE: ClassVar[str] = "request.created"
    MAJOR: ClassVar[int] = 2
    TOPIC: ClassVar[str] = "requests.events"

    request_id: str
    tenant: str
    sender: str
    teams: tuple[str, ...]
    title: str


SCHEMA_V2 = {
    "type": "record",
    "name": "RequestCreated",
    "namespace": "workbot.requests.v2",
    "fields": [
        *({"name": name, "type": "string"} for name in ("request_id", "tenant", "sender")),
        {"name": "teams", "type": {"type": "array", "items": "string"}},
        {"name": "title", "type": "string"},
    ],
}


class TellV2(Tell):
    """The handler with a reader for version 2: the first of the teams is told."""

    async def run(self, job):  # type: ignore[no-untyped-def]
        if isinstance(job.event, RequestCreatedV2):
            said = job.event
            job.event = RequestCreated(
                request_id=said.request_id,
                tenant=said.tenant,
                sender=said.sender,
                team=said.teams[0],
                title=said.title,
                body="",
            )
        await super().run(job)


async def test_an_unknown_version_waits_for_its_reader_and_holds_nobody(
    infra: Infra, home: Home, pool: Pool, codec: Codec, topic: Callable[..., str], tenant: str
) -> None:
    """Version 2 comes first, of the same sender as the thousand of version 1 behind it; it is sent back, as the
    gateway sends letters back, once a process that knows it is deployed."""
    sub = subscription(topic(3), POLICY, BACKOFF)
    topic(3, name=sub.retry_topic)
    topic(3, {"max.message.bytes": str(1_048_588 + 65_536)}, sub.dead_letter_topic)
    registry = Registry(infra.registry_url)
    newer = Codec(registry, [*catalog.contracts(), Contract(RequestCreatedV2, sub.topic, SCHEMA_V2)])
    await registry.register(f"{sub.topic}-workbot.requests.v2.RequestCreated", SCHEMA_V2)
    await newer.prepare([RequestCreatedV2, NotificationDeliveryRequested])
    unknown = newer.envelope(
        RequestCreatedV2(request_id="r-2", tenant=tenant, sender="ann", teams=("legal", "hr"), title="From tomorrow"),
        source="test",
        subject="r-2",
        key=Key(tenant, "ann"),
    )
    known = [
        codec.envelope(said, source="test", subject=said.request_id, key=Key(tenant, said.sender))
        for said in (request(tenant, ("ann", "bob", "cleo")[n % 3], title=f"no. {n}") for n in range(1000))
    ]
    produce(infra.kafka_bootstrap, sub.topic, [unknown, *known])

    tell = Tell(codec, lambda tenant: None)
    reader = EventReader(codec, {RequestCreated: tell})
    async with consuming(infra.kafka_bootstrap, sub, tell, pool=pool, conninfo=home.conninfo, reader=reader):
        await until(lambda: len(told(home, tenant)) == 1000, 60, "the thousand behind it")
    assert {str(row[0]) for row in told(home, tenant)} == {str(envelope.id) for envelope in known}
    (letter,) = read_all(infra.kafka_bootstrap, sub.dead_letter_topic, 3)
    pairs = dict(letter.headers() or [])
    assert (pairs["workbot_dead_reason"], pairs["workbot_dead_attempts"]) == (b"unknown_event", b"1")
    assert (letter.key(), letter.value()) == (unknown.key.encode(), unknown.payload)

    original = deadletter.original_headers(letter.headers())
    assert original == headers(unknown)
    back = deadletter.sent_back_headers(original, origin=pairs["workbot_origin"].decode(), generation=1)
    put(infra.kafka_bootstrap, sub.retry_topic, [(letter.key(), letter.value(), back)])
    deployed = TellV2(newer, lambda tenant: None)
    reader = EventReader(newer, {RequestCreated: deployed, RequestCreatedV2: deployed})
    async with consuming(infra.kafka_bootstrap, sub, deployed, pool=pool, conninfo=home.conninfo, reader=reader):
        await until(lambda: len(told(home, tenant)) == 1001, 60, "the one that waited")
    assert told(home, tenant)[-1][:2] == (str(unknown.id), "legal")
    await registry.close()
