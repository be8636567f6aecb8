"""The whole loop on the real services: a broken document dies, is sent back, runs again once; its status follows."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from loadtest import pdf
from schemas import topics
from tests.documents.processes import resident_bytes
from tests.fixtures.outbox import Proxy
from tests.fixtures.processes import Home, Running
from tests.fixtures.stack import Infra
from tests.gateway.conftest import Start

READER = topics.load().subscription("documents.jobs", "reader")
LETTERS = "/api/admin/dead-letters"
LINES = ["INVOICE", "Supplier: Acme", "Invoice number: A-1", "Date: 2026-05-04", "Total: 12.50 EUR", "Currency: EUR"]
GOOD = pdf.write([LINES], identity=b"0" * 16).data
BROKEN = GOOD[: len(GOOD) // 2]


@pytest.fixture(scope="module")
def reader(start_documents: Start) -> Iterator[Running]:
    """The documents worker."""
    with start_documents("worker") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(start: Start, start_documents: Start, reader: Running) -> Iterator[Running]:
    with start_documents("api") as api, start("api", documents_url=api.url, workers=reader.url) as running:
        yield running


@pytest.fixture
def ann(gateway: Running, tenant: str) -> Iterator[httpx.Client]:
    """A sender who is an admin too."""
    with gateway.client("ann", tenant, "sender", "admin") as client:
        yield client


def soon(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def hand_in(ann: httpx.Client, content: bytes) -> str:
    answer = ann.post("/api/documents", files={"file": ("a.pdf", content, "application/pdf")})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/api/documents/{answer.json()['id']}"
    return str(answer.json()["id"])


def settled(ann: httpx.Client, document_id: str, *statuses: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        document: dict[str, Any] = ann.get(f"/api/documents/{document_id}").json()
        return document if document["status"] in statuses else None

    found: dict[str, Any] = soon(look)
    return found


def letter_of(ann: httpx.Client, document_id: str, generation: int) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        items = ann.get(LETTERS, params={"source": READER.topic}).json()["items"]
        same = [item for item in items if (item["subject"], item["generation"]) == (document_id, generation)]
        assert len(same) < 2
        return same[0] if same else None

    found: dict[str, Any] = soon(look)
    return found


def sent_back_records(infra: Infra) -> int:
    """How many records were ever put on the retry topic."""
    consumer = Consumer({"bootstrap.servers": infra.kafka_bootstrap, "group.id": "unused"})
    places = [TopicPartition(READER.retry_topic, n) for n in range(topics.load()[READER.topic].partitions)]
    ends = [consumer.get_watermark_offsets(place, timeout=10) for place in places]
    consumer.close()
    return sum(end for _, end in ends)


def runs(documents_home: Home, letter: dict[str, Any]) -> list[tuple[object, ...]]:
    """Every run of the letter's job: its generation, attempt and outcome."""
    return documents_home.rows(
        "select generation, attempt, outcome from ledger_attempts where message_id = %s order by started_at",
        letter["message_id"],
    )


def test_a_document_comes_back_from_the_dead(
    infra: Infra, start: Start, ann: httpx.Client, documents_home: Home, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with start("worker"):
        document_id = hand_in(ann, BROKEN)
        assert settled(ann, document_id, "failed")["attempts"] == 1
        letter = letter_of(ann, document_id, 0)
        assert (letter["owner"], letter["type"], letter["state"]) == ("ann", "document.reading_requested", "open")
        before = sent_back_records(infra)

        # Still broken: of a hundred clicks one counts; it runs once more and dies anew, with the same bytes.
        with ThreadPoolExecutor(20) as hands:
            clicks = list(hands.map(lambda _: ann.post(f"{LETTERS}/{letter['id']}/send-back"), range(100)))
        assert sorted(click.status_code for click in clicks) == [202] + [409] * 99
        again = letter_of(ann, document_id, 1)
        assert letter_of(ann, document_id, 0)["state"] == "sent"
        assert (again["state"], again["attempts"], again["size_bytes"]) == ("open", 1, letter["size_bytes"])
        whole = [ann.get(f"{LETTERS}/{one['id']}").json() for one in (letter, again)]
        assert whole[0]["key"] == whole[1]["key"]
        assert whole[0]["value"] == whole[1]["value"]
        assert whole[0]["headers"] == whole[1]["headers"]
        assert (settled(ann, document_id, "failed"))["attempts"] == 1

        # Mended: it is read.
        ((key,),) = documents_home.rows("select storage_key from documents where id = %s", document_id)
        (file,) = (path for path in tmp_path_factory.getbasetemp().rglob(Path(str(key)).name) if path.is_file())
        file.write_bytes(GOOD)
        assert ann.post(f"{LETTERS}/{again['id']}/send-back").status_code == 202
        document = settled(ann, document_id, "approved")
    assert (document["attempts"], document["error"]) == (1, None)
    assert sent_back_records(infra) == before + 2
    soon(lambda: len(runs(documents_home, letter)) == 3)
    assert runs(documents_home, letter) == [(0, 1, "dead"), (1, 1, "dead"), (2, 1, "done")]
    told = documents_home.rows("select type from outbox where subject = %s order by seq", document_id)
    assert [row[0] for row in told if row[0] != "document.reading_requested"] == [
        "document.received",
        "document.failed",
        "document.failed",
        "document.read",
    ]


def test_a_worker_killed_between_the_halves_of_a_send_back_finishes_it_when_it_is_back(
    infra: Infra, start: Start, ann: httpx.Client, home: Home, documents_home: Home
) -> None:
    way = Proxy(infra.kafka_bootstrap)
    try:
        with start("worker", kafka_bootstrap=way.address) as worker:
            document_id = hand_in(ann, BROKEN)
            letter = letter_of(ann, document_id, 0)
            before = sent_back_records(infra)
            way.cut()
            assert ann.post(f"{LETTERS}/{letter['id']}/send-back").status_code == 202
            claimed = "select 1 from dead_letters where id = %s and leased_until is not null"
            soon(lambda: home.rows(claimed, letter["id"]))
            worker.kill()
        assert ann.get(f"{LETTERS}/{letter['id']}").json()["state"] == "sending"
        assert ann.post(f"{LETTERS}/{letter['id']}/send-back").status_code == 409
        assert sent_back_records(infra) == before
        with start("worker"):
            soon(lambda: ann.get(f"{LETTERS}/{letter['id']}").json()["state"] == "sent")
            letter_of(ann, document_id, 1)
    finally:
        way.close()
    assert sent_back_records(infra) == before + 1
    soon(lambda: len(runs(documents_home, letter)) == 2)
    assert runs(documents_home, letter) == [(0, 1, "dead"), (1, 1, "dead")]


def test_an_upload_through_the_gateway(gateway: Running, ann: httpx.Client) -> None:
    """As large as the service takes, and a little too large: both are the service's to answer."""
    before = resident_bytes(gateway.process.pid)
    text = b"Invoice total 1.00 EUR\n" * 860_000
    answer = ann.post("/api/documents", files={"file": ("a.txt", text, "text/plain")})
    assert answer.status_code == 202, answer.text
    assert ann.get(answer.headers["location"]).json()["size_bytes"] == len(text)
    assert resident_bytes(gateway.process.pid) - before < 8 * 2**20
    too_large = ann.post("/api/documents", files={"file": ("a.txt", text * 2, "text/plain")})
    assert (too_large.status_code, too_large.json()["type"]) == (413, "urn:workbot:problem:too-large")


def test_the_worker_tells_the_gateway_what_waits(reader: Running, ann: httpx.Client) -> None:
    found = ann.get("/api/admin/queues").json()
    assert found["workers"] == [{"address": reader.url, "silent": None}]
    (queue,) = found["queues"]
    assert (queue["consumer"], queue["slots"], queue["senders"]) == ("reader", 10, [])
    assert httpx.get(f"{reader.url}/api/queues", trust_env=False).status_code == 401
