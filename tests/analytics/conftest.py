"""The analytics service on topics, a group and a database of its own, as the real process."""

import asyncio
import contextlib
import functools
import json
import re
import secrets
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from messaging import admin
from messaging.codec import Codec
from messaging.message import new_id
from messaging.producer import producer_config
from messaging.registry import Registry
from schemas import catalog, deploy, topics
from schemas.events import ALL, DocumentRead, DocumentReceived, RequestCreated
from services.analytics.parts import MIGRATIONS
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Home, Running, end, migrated, variables
from tests.fixtures.stack import Infra

SETTLED_SECONDS = 45.0
PARTITIONS = 3


@dataclass(frozen=True)
class Place:
    """Topics of a test's own, as topics.toml has the real ones."""

    group: str
    file: Path
    infra: Infra
    codec: Codec
    listed: topics.Topics
    documents: str
    requests: str

    @property
    def dead(self) -> str:
        return f"{self.documents}.analytics.dlq"

    def send(self, events: Sequence[Any], *, topic: str = "", headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Put events on their topic as the relay does; bytes as they are, where ann's documents are."""
        producer = self._producer
        for event in events:
            if isinstance(event, bytes):
                said = [("ce_type", b"document.read"), ("event_version", b"1"), ("ce_id", str(new_id()).encode())]
                place, key, value = topic or self.documents, "acme:ann", event
            else:
                said = [
                    ("ce_type", event.TYPE.encode()),
                    ("event_version", str(event.MAJOR).encode()),
                    ("ce_id", str(new_id()).encode()),
                    ("ce_time", datetime.now(UTC).isoformat().encode()),
                ]
                home = self.requests if event.TOPIC == "requests.events" else self.documents
                place, key, value = topic or home, f"{event.tenant}:{event.sender}", self.codec.encode(event)
            producer.produce(place, key=key, value=value, headers=[*(dict(said) | dict(headers)).items()])
            producer.poll(0)
        assert producer.flush(30) == 0

    def put(self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[Any]) -> None:
        """Put one record as it is."""
        self._producer.produce(topic, key=key, value=value, headers=list(headers))
        assert self._producer.flush(30) == 0

    @functools.cached_property
    def _producer(self) -> Producer:
        return Producer(producer_config(self.infra.kafka_bootstrap, "test"))

    def read_all(self, topic: str) -> list[Message]:
        """Every record of a topic now."""
        consumer = Consumer({"bootstrap.servers": self.infra.kafka_bootstrap, "group.id": f"read-{uuid.uuid4()}"})
        found: list[Message] = []
        try:
            places = [TopicPartition(topic, n, 0) for n in range(PARTITIONS)]
            ends = sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
            consumer.assign(places)
            while len(found) < ends:
                found += [record for record in consumer.consume(500, 0.2) if record.error() is None]
        finally:
            consumer.close()
        return found

    def committed(self) -> int:
        """The sum of the group's offsets over all its topics."""
        return self._committed([(t, n) for t in (self.documents, self.requests) for n in range(PARTITIONS)])

    def committed_of(self, topic: str, partition: int) -> int:
        """The group's offset in one partition; 0 without any."""
        return self._committed([(topic, partition)])

    def _committed(self, partitions: Sequence[tuple[str, int]]) -> int:
        consumer = Consumer(
            {"bootstrap.servers": self.infra.kafka_bootstrap, "group.id": self.group, "enable.auto.commit": False}
        )
        try:
            found = consumer.committed([TopicPartition(*each) for each in partitions], timeout=10)
            return sum(max(0, place.offset) for place in found)
        finally:
            consumer.close()

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """As Kafka's retention does."""
        client = AdminClient({"bootstrap.servers": self.infra.kafka_bootstrap})
        for answer in client.delete_records([TopicPartition(topic, partition, offset)]).values():
            answer.result(30)

    def rewind(self) -> None:
        """Move the group back to the beginning, once nobody is in it."""
        self.move([TopicPartition(t, n, 0) for t in (self.documents, self.requests) for n in range(PARTITIONS)])

    def forget(self) -> None:
        """Take from the group what it has committed, once nobody is in it."""
        client = AdminClient({"bootstrap.servers": self.infra.kafka_bootstrap})
        until(lambda: client.delete_consumer_groups([self.group])[self.group].exception(10) is None)

    def move(self, places: list[TopicPartition]) -> None:
        """Move the group by hand, once nobody is in it."""
        client = AdminClient({"bootstrap.servers": self.infra.kafka_bootstrap})
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            answer = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group, places)])[
                self.group
            ]
            faults = [part.error for part in answer.result(10).topic_partitions if part.error is not None]
            if not faults:
                return
            assert time.monotonic() < deadline, faults
            time.sleep(0.2)


_TOPICS = """
services = ["shop", "analytics"]
"""
_TOPIC = """
[topics."{name}"]
purpose = "A topic of a test's own."
key = "tenant:sender"
partitions = {partitions}
retention = "7 days"
producers = ["shop"]
events = {events}

[topics."{name}".consumers.analytics]
service = "analytics"
alias = "{name}.analytics"
group = "{group}"
policy = {{ per_key = 1, total = 1, ordered = true }}
backoff = {{ attempts = 3, base = 0.2, cap = 0.5 }}
"""
_TABLES = """
[tables.{group}]
service = "analytics"
names = ["counts"]
partitions = {partitions}
"""


@pytest.fixture
def place(infra: Infra, kafka_admin: AdminClient, tmp_path: Path) -> Iterator[Place]:
    group = f"t{secrets.token_hex(6)}"
    documents, requests = f"{group}.documents", f"{group}.requests"
    real = topics.load()
    text = _TOPICS
    for name, source in ((documents, "documents.events"), (requests, "requests.events")):
        events = json.dumps(list(real[source].events))
        text += _TOPIC.format(name=name, group=group, events=events, partitions=PARTITIONS)
    file = tmp_path / "topics.toml"
    file.write_text(text + _TABLES.format(group=group, partitions=PARTITIONS))
    listed = topics.load(file)

    async def prepare() -> Codec:
        await deploy.register(infra.registry_url)
        await admin.create_topics(infra.kafka_bootstrap, listed.specs())
        registry = Registry(infra.registry_url)
        codec = catalog.codec(registry)
        await codec.prepare(ALL)
        await registry.close()
        return codec

    yield Place(group, file, infra, asyncio.run(prepare()), listed, documents, requests)
    for deleted in kafka_admin.delete_topics([spec.name for spec in listed.specs()]).values():
        deleted.exception(10)


@pytest.fixture
def home(infra: Infra) -> Iterator[Home]:
    with migrated(infra, "analytics", MIGRATIONS) as home:
        yield home


@dataclass(frozen=True)
class Counter(Running):
    """A process that counts, and what it says."""

    def events(self, tenant: str = "acme", sub: str = "eve", *roles: str, **params: str) -> httpx.Response:
        with self.client(sub, tenant, *(roles or ("viewer",))) as client:
            return client.get("/api/analytics/events", params=params)

    def total(self, tenant: str = "acme", **params: str) -> int:
        """How many events it has counted; -1 while it cannot say."""
        try:
            answer = self.events(tenant, **params)
        except httpx.TransportError:
            return -1
        return int(answer.json()["total"]) if answer.status_code == 200 else -1

    def minutes(self) -> int:
        """How many events the last hour's minutes hold."""
        with self.client("eve", "acme", "viewer") as client:
            found = client.get("/api/analytics/series", params={"window": "minute"}).json()
        return sum(point["count"] for point in found["points"])

    def repeats(self) -> float:
        """How many events it has read again and found counted."""
        return self.metric("workbot_events_repeated_total")

    def metric(self, name: str) -> float:
        """A metric's values over all its labels."""
        said = httpx.get(f"{self.url}/metrics", trust_env=False).text
        return sum(float(n) for n in re.findall(rf"^{name}\{{.*\}} (\S+)$", said, re.MULTILINE))

    def ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/readyz", trust_env=False).status_code == 200
        return False


Start = Callable[..., "contextlib.AbstractContextManager[Counter]"]


@pytest.fixture
def start(infra: Infra, home: Home, place: Place, tmp_path: Path) -> Start:
    """`with start(tables=folder, **settings) as counter`: the process, once it counts unless `wait=False`.

    Drained at the end unless it was killed, or is to end of a fault of its own (`faulty`); its log is among the
    test's files.
    """

    @contextlib.contextmanager
    def starting(
        *, tables: Path = tmp_path / "tables", wait: bool = True, faulty: bool = False, **settings: object
    ) -> Iterator[Counter]:
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        folder.mkdir()
        port = free_port()
        environment = variables(infra, home, folder, {"port": port, "tables_dir": tables, **settings})
        command = [sys.executable, "-m", "tests.analytics.worker", "api", str(place.file), place.group]
        with (folder / "log").open("wb") as output:
            process = subprocess.Popen(command, env=environment, stderr=output)
        counter = Counter(f"http://127.0.0.1:{port}", process, folder / "log")
        try:
            if wait:
                until(counter.ready, counter)
            yield counter
        finally:
            end(process, 40)
        said = counter.log.read_text()
        assert faulty or process.returncode in (0, -signal.SIGKILL), said[-6000:]
        assert ("process.fault" in said) is faulty, said[-6000:]

    return starting


def until(condition: Callable[[], bool], counter: Counter | None = None, seconds: float = SETTLED_SECONDS) -> float:
    """Wait for something to become true; returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        said = counter.log.read_text()[-6000:] if counter is not None else ""
        if counter is not None and condition.__name__ == "ready":
            assert counter.process.poll() is None, said
        assert time.monotonic() - began < seconds, said
        time.sleep(0.05)
    return time.monotonic() - began


def received(number: int, *, sender: str = "ann", tenant: str = "acme") -> DocumentReceived:
    return DocumentReceived(
        document_id=f"d-{number}", tenant=tenant, sender=sender, kind="file", content_type="text/plain", size_bytes=1
    )


def read(number: int, *, sender: str = "ann", tenant: str = "acme") -> DocumentRead:
    return DocumentRead(
        document_id=f"d-{number}", tenant=tenant, sender=sender, status="approved", fields=(), attempts=1, model="m"
    )


def request(number: int, *, sender: str = "ann", tenant: str = "acme") -> RequestCreated:
    return RequestCreated(
        request_id=f"r-{number}", tenant=tenant, sender=sender, team="it", title="t", body="b", channel="api"
    )
