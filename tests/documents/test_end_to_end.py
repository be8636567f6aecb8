"""The two processes together, on the real servers: handed in over HTTP, read from Kafka, told to whoever listens."""

import asyncio
import time
import uuid
from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import Consumer, Message

from loadtest import pdf
from messaging.message import TYPE, headers_to_dict
from schemas import deploy, topics
from tests.documents.conftest import Face, StartFace
from tests.documents.processes import children, runs
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra

PATH = "/api/documents"
INVOICE = [
    "INVOICE",
    "Supplier: Acme",
    "Invoice number: A-1",
    "Date: 2026-05-04",
    "Total: 12.50 EUR",
    "Currency: EUR",
]
FILE = pdf.write([INVOICE], identity=b"0" * 16).data
SETTLED = {"waiting_for_review", "approved", "failed"}


@pytest.fixture(scope="module")
def topics_made(infra: Infra) -> None:
    asyncio.run(deploy.create_topics(infra.kafka_bootstrap))


@pytest.fixture(scope="module")
def both(topics_made: None, start_process: StartFace) -> Iterator[tuple[Face, Face]]:
    with start_process("api") as api, start_process("worker", storage=api.storage) as worker:
        yield api, worker


def follow(client: httpx.Client, href: str, seconds: float = 30.0) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while True:
        document: dict[str, object] = client.get(href).json()
        if document["status"] in SETTLED:
            return document
        assert time.monotonic() < deadline, document
        time.sleep(0.05)


def heard(infra: Infra, topic: str, document_id: str, count: int) -> list[Message]:
    """The records about a document; waits for `count`, then a little longer for one too many."""
    consumer = Consumer(
        {"bootstrap.servers": infra.kafka_bootstrap, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[Message] = []
    deadline = time.monotonic() + 20
    extra = 1.0
    while time.monotonic() < deadline and extra > 0:
        for record in consumer.consume(500, 0.2):
            if headers_to_dict(record.headers()).get("ce_subject") == document_id.encode():
                found.append(record)
        if len(found) >= count:
            extra -= 0.2
    consumer.close()
    return found


def test_a_document_is_read_and_everybody_is_told(infra: Infra, both: tuple[Face, Face], tenant: str) -> None:
    api, _ = both
    with api.client("ann", tenant) as ann:
        answer = ann.post(PATH, files={"file": ("invoice.pdf", FILE, "application/pdf")})
        document = follow(ann, answer.headers["location"])
    assert document["status"] == "approved"
    assert document["attempts"] == 1
    fields = document["fields"]
    assert isinstance(fields, dict)
    assert fields["total"]["value"] == "12.50"
    records = heard(infra, "documents.events", str(document["id"]), 2)
    said = [headers_to_dict(record.headers())[TYPE].decode() for record in records]
    assert said == ["document.received", "document.read"]
    assert {record.key() for record in records} == {f"{tenant}:ann".encode()}


def test_a_broken_document_is_a_dead_letter_after_one_attempt(
    infra: Infra, both: tuple[Face, Face], home: Home, tenant: str
) -> None:
    api, _ = both
    with api.client("ann", tenant) as ann:
        answer = ann.post(PATH, files={"file": ("a.pdf", FILE[: len(FILE) // 2], "application/pdf")})
        document = follow(ann, answer.headers["location"])
    assert (document["status"], document["attempts"]) == ("failed", 1)
    assert "breaks off" in str(document["error"])
    dead = topics.load().subscription("documents.jobs", "reader").dead_letter_topic
    (letter,) = heard(infra, dead, str(document["id"]), 1)
    assert letter.key() == f"{tenant}:ann".encode()
    assert home.rows("select state, failures from ledger where message_id = %s", _id(letter)) == [("dead", 1)]
    said = [headers_to_dict(r.headers())[TYPE] for r in heard(infra, "documents.events", str(document["id"]), 2)]
    assert said == [b"document.received", b"document.failed"]


def test_a_document_nobody_can_make_sense_of_waits_for_a_person(both: tuple[Face, Face], tenant: str) -> None:
    api, _ = both
    with api.client("ann", tenant) as ann:
        document = follow(ann, ann.post(PATH, json={"text": "hello there"}).headers["location"])
    assert document["status"] == "waiting_for_review"


def test_both_processes_say_that_they_are_well(both: tuple[Face, Face]) -> None:
    for process in both:
        for path in ("/healthz", "/readyz"):
            answer = httpx.get(process.url + path, trust_env=False)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok"), answer.text
        assert "workbot_" in httpx.get(f"{process.url}/metrics", trust_env=False).text


def test_the_worker_leaves_no_process_behind(topics_made: None, start_process: StartFace) -> None:
    with start_process("worker") as worker:
        started = children(worker.pid)
        assert len(started) == 2
    assert not any(runs(pid) for pid in started)


def _id(record: Message) -> str:
    return headers_to_dict(record.headers())["ce_id"].decode()
