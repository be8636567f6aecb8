"""Bad input to the real services: every consumer and its retry topic sets it aside, the projector shows it."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from messaging.codec import Codec
from messaging.message import new_id
from messaging.policy import Subscription
from messaging.registry import Registry
from schemas import catalog, topics
from schemas.events import (
    DocumentRead,
    DocumentReadingRequested,
    NotificationDeliveryRequested,
    RequestCreated,
)
from schemas.topics import HEADROOM_BYTES, MAX_RECORD_BYTES
from services.analytics import parts as analytics_parts
from services.notifications import parts as notifications_parts
from tests.fixtures.bad_input import FAR_OFF, Headers, Placing, Raw, bad_records, forged_records, within_a_second
from tests.fixtures.processes import Home, Running, migrated, running
from tests.fixtures.stack import Infra
from tests.gateway.conftest import Start
from tests.gateway.letterbox import dead

CONSUMERS = [
    ("documents.jobs", "reader"),
    ("documents.events", "notifications"),
    ("documents.events", "analytics"),
    ("requests.events", "notifications"),
    ("requests.events", "analytics"),
    ("notifications.deliveries", "deliverer"),
]
"""Those that are shown bad input here."""

IMPOSSIBLE = ("", "a\0b", "a\nb", "\x1f", "x" * 300, "x" * 300_000)
"""What no producer of ours writes for a name or an id."""

WHOSE = {"tenant": (*IMPOSSIBLE, "a:b"), "sender": IMPOSSIBLE}

ABSURD: Mapping[tuple[str, str], Mapping[str, Sequence[str]]] = {
    ("documents.jobs", "reader"): {"document_id": IMPOSSIBLE},
    ("documents.events", "notifications"): {**WHOSE, "document_id": IMPOSSIBLE, "status": ("", "lost")},
    ("documents.events", "analytics"): {**WHOSE, "document_id": IMPOSSIBLE},
    ("requests.events", "notifications"): {**WHOSE, "request_id": IMPOSSIBLE, "team": IMPOSSIBLE},
    ("requests.events", "analytics"): WHOSE,
    ("notifications.deliveries", "deliverer"): {"delivery_id": IMPOSSIBLE},
}
"""By field: what it cannot hold, as far as its consumer looks at it."""

SAID: Mapping[str, Any] = {
    "documents.jobs": DocumentReadingRequested(
        document_id="d", tenant="t", sender="s", kind="text", content_type="text/plain", size_bytes=1
    ),
    "documents.events": DocumentRead(
        document_id="d", tenant="t", sender="s", status="approved", fields=(), attempts=1, model="built-in"
    ),
    "requests.events": RequestCreated(
        request_id="r", tenant="t", sender="s", team="it", title="Jammed", body="Third floor."
    ),
    # Of a delivery that there is not: it is done at once.
    "notifications.deliveries": NotificationDeliveryRequested(
        delivery_id="0197c2a5-7b3e-7c55-8f6e-2f1f4a8e9b10", tenant="t", sender="s", channel="webhook"
    ),
}
"""What is said on each topic."""

METADATA = '{"finished": [[0, 99999999999999999999]' + "\x01\x7f" + "é" * 1000
"""What a stranger wrote beside each group's offset."""

everyone = pytest.mark.parametrize(("source", "consumer"), CONSUMERS, ids=[".".join(names) for names in CONSUMERS])


class Books(Protocol):
    """Where a service says what became of records."""

    def handled_at(self, last: Raw, sender: str, count: int) -> float | None:
        """When the last of `count` good records of this sender was handled; None before that."""

    def ended(self, ids: Sequence[str], state: str) -> bool:
        """Whether each of these came to that end: done or dead."""


@dataclass(frozen=True)
class Ledger:
    """Of a consumer with slots."""

    home: Home
    consumer: str

    def handled_at(self, last: Raw, sender: str, count: int) -> float | None:
        query = "select extract(epoch from started_at) from ledger_attempts where message_id = %s and consumer = %s"
        found = self.home.rows(query, known(last), self.consumer)
        return float(str(found[0][0])) if found else None

    def ended(self, ids: Sequence[str], state: str) -> bool:
        query = "select state, count(*) from ledger where message_id = any(%s) and consumer = %s group by state"
        return self.home.rows(query, list(ids), self.consumer) == [(state, len(ids))]


@dataclass(frozen=True)
class Counts:
    """Of what is counted, and has no other trace when it has ended."""

    home: Home
    client: httpx.Client

    def handled_at(self, last: Raw, sender: str, count: int) -> float | None:
        found = self.client.get("/api/analytics/events", params={"sender": sender}).json()
        return time.time() if found["total"] == count else None

    def ended(self, ids: Sequence[str], state: str) -> bool:
        return self.home.rows("select * from event_tries") == []


@dataclass(frozen=True)
class Shown:
    """A consumer, records that it handles at once, and where it can be seen that it did."""

    subscription: Subscription
    make: Callable[[str], Raw]
    absurd: Callable[[str], list[Raw]]
    other_schema: int
    books: Books
    placing: Placing

    def good(self, sender: str, size: int = 0) -> Raw:
        """One of this sender, under an id of its own and about `size` bytes long."""
        raw = self.make(sender)
        return raw.but(ce_id=str(new_id()).encode(), filler=bytes(max(0, size - raw.size - 200)))

    def behind(self, topic: str, sender: str, records: Sequence[Raw], good: int = 0) -> tuple[float, list[int]]:
        """Seconds from the writing of these, `good` of them readable, and of a good one behind them, to that one's
        start; the offsets of these."""
        last, began = self.good(sender), time.time()
        offsets = self.placing.put(topic, [*records, last])
        return soon(lambda: self.books.handled_at(last, sender, good + 1)) - began, offsets[:-1]


@dataclass(frozen=True)
class House:
    """The services with consumers, and the gateway's worker."""

    infra: Infra
    gateway_home: Home
    running: Sequence[Running]
    shown: dict[tuple[str, str], Shown]

    def letters(self, where: str, *parameters: object) -> list[tuple[object, ...]]:
        columns = "key, value, header_names, header_values, reason"
        return self.gateway_home.rows(f"select {columns} from dead_letters where {where}", *parameters)

    def well(self) -> None:
        """Holds that every process goes on as ever."""
        for process in self.running:
            for path in ("/healthz", "/readyz"):
                assert httpx.get(process.url + path, trust_env=False).status_code == 200, process.log.read_text()


def soon(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def known(raw: Raw) -> str:
    """A record's id."""
    return (dict(raw.headers)["ce_id"] or b"").decode()


def fresh() -> str:
    """A sender nobody else is."""
    return f"s-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def house(
    infra: Infra,
    start: Start,
    start_documents: Start,
    home: Home,
    documents_home: Home,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    tenant = f"tenant-{uuid.uuid4().hex[:8]}"
    known_topics = topics.load()
    for names in CONSUMERS:
        forge_offsets(infra.kafka_bootstrap, known_topics.subscription(*names))

    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    with ExitStack() as stack:
        notifications_home = stack.enter_context(migrated(infra, "notifications", notifications_parts.MIGRATIONS))
        analytics_home = stack.enter_context(migrated(infra, "analytics", analytics_parts.MIGRATIONS))
        api = stack.enter_context(start_documents("api"))
        documents = stack.enter_context(start_documents("worker"))
        gateway = stack.enter_context(start("worker"))
        notifications, analytics = (
            stack.enter_context(running(infra, where, service, "api", folder(service), settings))
            for where, service, settings in (
                (notifications_home, "notifications", {}),
                (analytics_home, "analytics", {"tables_dir": folder("tables")}),
            )
        )
        job = read_before(api, documents_home, tenant)
        codec, others = asyncio.run(prepared(infra.registry_url))

        def framed(event: Any) -> Raw:
            headers: Headers = [("ce_type", event.TYPE.encode()), ("event_version", str(event.MAJOR).encode())]
            return Raw(f"{event.tenant}:{event.sender}".encode(), codec.encode(event), headers)

        counts = Counts(analytics_home, stack.enter_context(analytics.client("eve", tenant, "viewer")))
        placing = Placing(infra.kafka_bootstrap)
        shown = {}
        for names in CONSUMERS:
            sub = known_topics.subscription(*names)
            books: Books = counts if sub.consumer == "analytics" else Ledger(notifications_home, sub.name)
            if sub.consumer == "reader":
                books = Ledger(documents_home, sub.name)

            def make(sender: str, source: str = sub.topic) -> Raw:
                said = dataclasses.replace(SAID[source], tenant=tenant, sender=sender)
                return job if source == "documents.jobs" else framed(said)

            def absurd(sender: str, names: tuple[str, str] = names) -> list[Raw]:
                said = dataclasses.replace(SAID[names[0]], tenant=tenant, sender=sender)
                return [
                    Raw(make(sender, names[0]).key, raw.value, raw.headers).but(ce_id=str(new_id()).encode())
                    for field, words in ABSURD[names].items()
                    for raw in (framed(dataclasses.replace(said, **{field: word})) for word in words)
                ]

            other = others["requests.events" if sub.topic != "requests.events" else "documents.events"]
            shown[names] = Shown(sub, make, absurd, other, books, placing)
        yield House(infra, home, [documents, gateway, notifications, analytics], shown)


def forge_offsets(bootstrap: str, sub: Subscription) -> None:
    """Leave every offset where it is, with nonsense beside it; once nobody is in the group."""
    stranger = Consumer({"bootstrap.servers": bootstrap, "group.id": sub.group, "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, 0) for topic in (sub.topic, sub.retry_topic)]
        for place in stranger.committed(places, timeout=10):
            first, _ = stranger.get_watermark_offsets(place, timeout=10)
            forged = TopicPartition(place.topic, 0, max(first, place.offset), METADATA)
            soon(lambda forged=forged: _committed(stranger, forged), 90)
    finally:
        stranger.close()


def _committed(consumer: Consumer, place: TopicPartition) -> bool:
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException:
        return False
    return True


def read_before(api: Running, documents_home: Home, tenant: str) -> Raw:
    """The job of a document that was read: again, it is done at once."""
    with api.client("ann", tenant, "sender") as ann:
        handed_in = ann.post("/api/documents", json={"text": "Invoice 7 from Acme Ltd, total 12.50 EUR"}).json()
        soon(lambda: ann.get(handed_in["href"]).json()["status"] in ("approved", "waiting_for_review"))
    query = "select key, payload, version, subject from outbox where type = %s"
    key, payload, version, subject = documents_home.rows(query, DocumentReadingRequested.TYPE)[0]
    assert isinstance(payload, bytes)
    headers: Headers = [
        ("ce_type", DocumentReadingRequested.TYPE.encode()),
        ("event_version", str(version).encode()),
        ("ce_subject", str(subject).encode()),
    ]
    return Raw(str(key).encode(), payload, headers)


async def prepared(registry_url: str) -> tuple[Codec, dict[str, int]]:
    """A codec that can say all that is said here, and the id of each topic's schema."""
    registry = Registry(registry_url)
    codec = catalog.codec(registry)
    await codec.prepare(map(type, SAID.values()))
    await registry.close()
    return codec, {topic: int.from_bytes(codec.encode(event)[1:5], "big") for topic, event in SAID.items()}


def test_every_consumer_there_is_is_shown_bad_input() -> None:
    """Whoever adds one adds it here."""
    listed = topics.load()
    assert {(topic, consumer) for topic in listed for consumer in listed[topic].consumers} == set(CONSUMERS)


@pytest.mark.parametrize("retry", [False, True], ids=["topic", "retry topic"])
@everyone
def test_bad_input_is_set_aside_and_the_next_record_goes_on(
    house: House, source: str, consumer: str, retry: bool
) -> None:
    shown = house.shown[source, consumer]
    topic = shown.subscription.retry_topic if retry else source
    limit = MAX_RECORD_BYTES + (HEADROOM_BYTES if retry else 0)
    largest, _ = shown.placing.put_largest(topic, shown.good(fresh()), limit)
    written: dict[str, tuple[Raw, str, int]] = {}

    def behind_bad() -> float:
        sender = fresh()
        bad = bad_records(shown.good(sender), shown.other_schema)
        key = shown.good(sender).key
        bad["largest"] = (Raw(key, largest.value, largest.headers).but(ce_id=str(new_id()).encode()), "undecodable")
        seconds, offsets = shown.behind(topic, sender, [raw for raw, _ in bad.values()])
        written.update({name: (*bad[name], offset) for name, offset in zip(bad, offsets, strict=True)})
        return seconds

    def behind_good() -> float:
        sender = fresh()
        sizes = [raw.size for raw, _ in bad_records(shown.good(sender), shown.other_schema).values()]
        records = [shown.good(sender, size) for size in [*sizes, largest.size]]
        return shown.behind(topic, sender, records, len(records))[0]

    shown.behind(topic, fresh(), [])  # the group has formed
    within_a_second(behind_good, behind_bad)
    ids = set()
    for name, (raw, reason, offset) in written.items():
        given = dict(raw.headers)
        # On a retry topic our own headers count: a consumer of ours would have written them.
        forged = given.get("workbot_origin") if retry else None
        origin = f"{topic}/0/{offset}" if forged is None else forged.decode()
        where = "source = %s and consumer = %s and origin = %s and attempts = 1"
        (letter,) = soon(lambda origin=origin, where=where: house.letters(where, source, consumer, origin))
        kept = [(n.encode(), v) for n, v in raw.headers if not n.startswith("workbot_")]
        assert letter == (raw.key, raw.value, [n for n, _ in kept], [v for _, v in kept], reason), name
        ids.add((given.get("ce_id") or origin.encode()).decode())
    assert len(ids) == len(written)
    soon(lambda: shown.books.ended(sorted(ids), "dead"))
    house.well()


@everyone
def test_an_event_that_says_what_cannot_be_is_set_aside(house: House, source: str, consumer: str) -> None:
    """Well-formed, with a name, id or word in it that no producer of ours writes: one try, as with garbage."""
    shown = house.shown[source, consumer]
    sent: set[str] = set()

    def behind_bad() -> float:
        sender = fresh()
        bad = shown.absurd(sender)
        seconds, _ = shown.behind(source, sender, bad)
        sent.update(map(known, bad))
        return seconds

    def behind_good() -> float:
        sender = fresh()
        records = [shown.good(sender, said.size) for said in shown.absurd(sender)]
        return shown.behind(source, sender, records, len(records))[0]

    shown.behind(source, fresh(), [])
    within_a_second(behind_good, behind_bad)
    where = "select message_id from dead_letters where source = %s and consumer = %s and attempts = 1"
    soon(lambda: sent <= {str(row[0]) for row in house.gateway_home.rows(where, source, consumer)})
    soon(lambda: shown.books.ended(sorted(sent), "dead"))
    house.well()


@everyone
def test_forged_headers_of_ours_on_the_retry_topic_hold_nobody_up(house: House, source: str, consumer: str) -> None:
    """What they say of a record that can be read is believed as far as it can be, and it is handled all the same."""
    shown = house.shown[source, consumer]
    topic = shown.subscription.retry_topic
    sent: list[str] = []

    def behind_forged() -> float:
        sender = fresh()
        forged = forged_records(lambda: shown.good(sender))
        seconds, _ = shown.behind(topic, sender, list(forged.values()), len(forged))
        # That one waits as long as any retry of its consumer may.
        sent.extend(known(raw) for name, raw in forged.items() if name != FAR_OFF)
        return seconds

    def behind_good() -> float:
        sender = fresh()
        records = [shown.good(sender) for _ in forged_records(lambda: shown.good(sender))]
        return shown.behind(topic, sender, records, len(records))[0]

    shown.behind(topic, fresh(), [])
    within_a_second(behind_good, behind_forged)
    soon(lambda: shown.books.ended(sent, "done"))
    assert house.letters("source = %s and consumer = %s and message_id = any(%s)", source, consumer, sent) == []
    house.well()


@everyone
def test_bad_input_on_the_dead_letter_topic_is_shown_and_the_next_letter_follows(
    house: House, source: str, consumer: str
) -> None:
    """Records that no consumer of ours wrote there; the projector stores them as they are."""
    shown = house.shown[source, consumer]
    topic, placing, sender = shown.subscription.dead_letter_topic, shown.placing, fresh()

    largest, _ = placing.put_largest(topic, shown.good(sender), MAX_RECORD_BYTES + 2 * HEADROOM_BYTES)
    written: list[tuple[str, Raw, int]] = []

    def stored_behind(records: list[Raw]) -> tuple[float, list[int]]:
        message_id, began = str(new_id()), time.time()
        offsets = placing.put(topic, [*records, Raw(*dead("acme", message_id=message_id))])
        query = "select extract(epoch from stored_at) from dead_letters where message_id = %s"
        ((stored,),) = soon(lambda: house.gateway_home.rows(query, message_id))
        return float(str(stored)) - began, offsets[:-1]

    def behind_bad() -> float:
        bad = {name: raw for name, (raw, _) in bad_records(shown.good(sender), shown.other_schema).items()}
        bad["largest"] = largest.but(ce_id=str(new_id()).encode())
        seconds, offsets = stored_behind(list(bad.values()))
        written[:] = zip(bad, bad.values(), offsets, strict=True)
        return seconds

    def behind_good() -> float:
        sizes = [raw.size for raw, _ in bad_records(shown.good(sender), shown.other_schema).values()]
        letters = [dead("acme") for _ in [*sizes, largest.size]]
        return stored_behind(
            [
                Raw(key, bytes(max(0, size - len(key or b"") - 500)), headers)
                for size, (key, _, headers) in zip([*sizes, largest.size], letters, strict=True)
            ]
        )[0]

    stored_behind([])
    within_a_second(behind_good, behind_bad)
    for name, raw, offset in written:
        where = 'topic = %s and "partition" = 0 and "offset" = %s'
        (letter,) = soon(lambda offset=offset, where=where: house.letters(where, topic, offset))
        kept = [(n.encode(), v) for n, v in raw.headers if not n.startswith("workbot_")]
        reason = "none of yours" if name.startswith("forged") else "unknown"
        assert letter == (raw.key, raw.value, [n for n, _ in kept], [v for _, v in kept], reason), name
    house.well()
