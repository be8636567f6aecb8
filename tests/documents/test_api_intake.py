"""What is handed in is kept once, whole, with its events; repeats, crowds and limits included."""

import concurrent.futures
import contextlib
import hashlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from loadtest import pdf
from messaging.codec import Codec
from messaging.message import TYPE, VERSION
from schemas.events import DocumentReadingRequested, DocumentReceived
from tests.documents.conftest import Face, StartFace
from tests.documents.processes import resident_bytes
from tests.fixtures.processes import Home
from web import tokens

PATH = "/api/documents"
PDF = pdf.write([["INVOICE", "Supplier: Acme"]], identity=b"0" * 16).data


def key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4())}


def kept(face: Face, document_id: str) -> bytes:
    (path,) = [path for path in face.storage.rglob(document_id) if path.is_file()]
    return path.read_bytes()


WAYS: dict[str, dict[str, Any]] = {
    "file": {"files": {"file": ("a.pdf", PDF, "application/pdf")}},
    "text": {"json": {"text": "Grüße, 世界"}},
    "url": {"json": {"url": "https://example.com/invoice"}},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_answer_names_the_address_to_follow(sender: httpx.Client, way: str) -> None:
    answer = sender.post(PATH, **WAYS[way])
    body = answer.json()
    assert answer.status_code == 202
    assert body == {"id": body["id"], "status": "queued", "href": f"{PATH}/{body['id']}"}
    assert answer.headers["location"] == body["href"]
    document = sender.get(body["href"]).json()
    assert (document["id"], document["kind"], document["status"]) == (body["id"], way, "queued")
    assert (document["sender"], document["fields"], document["attempts"], document["error"]) == ("ann", {}, 0, None)


def test_the_bytes_are_kept_as_sent(face: Face, sender: httpx.Client) -> None:
    file = sender.post(PATH, **WAYS["file"]).json()["id"]
    text = sender.post(PATH, **WAYS["text"]).json()["id"]
    assert kept(face, file) == PDF
    assert kept(face, text) == "Grüße, 世界".encode()


def test_a_file_in_many_pieces_is_kept_as_sent(face: Face, sender: httpx.Client) -> None:
    """Lines that look like boundaries included, and with a body whose length is not declared."""
    content = (b"\r\n--bound\r\n--b\r\n-" + b"x" * 997) * 900
    boundary = b"boundary-of-this-test"

    def body() -> Iterator[bytes]:
        yield b"--" + boundary + b'\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        for start in range(0, len(content), 1013):
            yield content[start : start + 1013]
        yield b"\r\n--" + boundary + b"--\r\n"

    headers = {"Content-Type": f"multipart/form-data; boundary={boundary.decode()}"}
    answer = sender.post(PATH, content=body(), headers=headers)
    assert answer.status_code == 202, answer.text
    assert hashlib.sha256(kept(face, answer.json()["id"])).digest() == hashlib.sha256(content).digest()


@pytest.mark.parametrize("way", WAYS)
async def test_the_row_brings_its_job_and_its_event(
    face: Face, home: Home, tenant: str, codec: Codec, way: str
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with face.client("ann", tenant) as sender:
        document_id = sender.post(PATH, **WAYS[way], headers={"traceparent": trace}).json()["id"]
    rows = home.rows(
        "select xid::text, topic, key, type, version, payload, source, traceparent from outbox where subject = %s"
        " order by seq",
        document_id,
    )
    assert [row[1] for row in rows] == ["documents.events", "documents.jobs"]
    assert len({row[0] for row in rows}) == 1, "one transaction"
    said = []
    for _, _, owner, type_, version, payload, source, traceparent in rows:
        assert (owner, source) == (f"{tenant}:ann", "documents")
        assert str(traceparent).split("-")[1] == trace.split("-")[1]
        headers = {TYPE: str(type_).encode(), VERSION: str(version).encode()}
        assert isinstance(payload, bytes)
        said.append(await codec.decode(headers, payload, {DocumentReceived, DocumentReadingRequested}))
    received, job = said
    assert isinstance(received, DocumentReceived)
    assert isinstance(job, DocumentReadingRequested)
    for event in said:
        assert (event.document_id, event.tenant, event.sender, event.kind) == (document_id, tenant, "ann", way)
    assert job.url == ("https://example.com/invoice" if way == "url" else None)
    assert job.storage_key == (None if way == "url" else document_id)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_key_and_body_is_the_same_document(face: Face, sender: httpx.Client, way: str) -> None:
    headers = key()
    first = sender.post(PATH, **WAYS[way], headers=headers)
    files = face.files()
    again = sender.post(PATH, **WAYS[way], headers=headers)
    assert (again.status_code, again.json(), again.headers["location"]) == (
        202,
        first.json(),
        first.headers["location"],
    )
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert face.files() == files
    assert len(sender.get(PATH).json()["items"]) == 1


def test_the_same_key_and_another_body_is_refused(face: Face, sender: httpx.Client) -> None:
    headers = key()
    sender.post(PATH, json={"text": "one"}, headers=headers)
    files = face.files()
    others: list[dict[str, Any]] = [
        {"json": {"text": "two"}},
        {"json": {"url": "https://example.com/"}},
        {"files": {"file": ("a.txt", b"one", "text/plain")}},
    ]
    for other in others:
        answer = sender.post(PATH, **other, headers=headers)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "Idempotency-Key"
    assert face.files() == files


def test_a_key_belongs_to_its_sender(face: Face, tenant: str) -> None:
    headers = key()
    with face.client("ann", tenant) as ann, face.client("bob", tenant) as bob, face.client("ann", "other") as other:
        ids = {person.post(PATH, json={"text": "x"}, headers=headers).json()["id"] for person in (ann, bob, other)}
    assert len(ids) == 3


def test_a_key_is_remembered_by_the_database_and_not_only_by_the_process(
    start_process: StartFace, face: Face, tenant: str
) -> None:
    headers = key()
    with start_process("api") as second, face.client("ann", tenant) as one, second.client("ann", tenant) as two:
        assert (
            one.post(PATH, json={"text": "x"}, headers=headers).json()["id"]
            == two.post(PATH, json={"text": "x"}, headers=headers).json()["id"]
        )
        assert two.post(PATH, json={"text": "y"}, headers=headers).status_code == 422
        assert second.files() == []


@pytest.mark.parametrize("way", ["file", "text"])
def test_twenty_at_once_with_one_key_are_one_document(face: Face, home: Home, tenant: str, way: str) -> None:
    headers, ready = key(), threading.Barrier(20)
    before = face.files()

    def post() -> httpx.Response:
        with face.client("ann", tenant) as client:
            client.get(PATH)
            ready.wait()
            return client.post(PATH, **WAYS[way], headers=headers)

    with concurrent.futures.ThreadPoolExecutor(20) as crowd:
        answers = [future.result() for future in [crowd.submit(post) for _ in range(20)]]
    assert {answer.status_code for answer in answers} == {202}
    (document_id,) = {answer.json()["id"] for answer in answers}
    assert home.rows("select id::text from documents where tenant = %s", tenant) == [(document_id,)]
    assert home.rows("select count(*) from outbox where key = %s", f"{tenant}:ann") == [(2,)]
    assert set(face.files()) - set(before) == {document_id}


def test_a_sender_has_so_many_waiting_and_no_more(start_process: StartFace, home: Home, tenant: str) -> None:
    with (
        start_process("api", sender_limit=3) as face,
        face.client("ann", tenant) as ann,
        face.client("bob", tenant) as bob,
    ):
        headers = key()
        first = ann.post(PATH, json={"text": "1"}, headers=headers).json()["id"]
        for text in "23":
            assert ann.post(PATH, json={"text": text}).status_code == 202
        files = face.files()
        refused = ann.post(PATH, json={"text": "4"})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["content-type"] == "application/problem+json"
        assert face.files() == files
        assert ann.post(PATH, json={"text": "1"}, headers=headers).json()["id"] == first, "a repeat takes no room"
        assert bob.post(PATH, json={"text": "1"}).status_code == 202
        home.change("update documents set status = 'approved' where id = %s", first)
        assert ann.post(PATH, json={"text": "4"}).status_code == 202


def test_a_full_outbox_refuses_work_and_keeps_nothing(face: Face, home: Home, sender: httpx.Client) -> None:
    files = face.files()
    home.change("insert into outbox_limit (ceiling) values (0)")
    try:
        answer = sender.post(PATH, json={"text": "hello"})
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert face.files() == files
        assert sender.get(PATH).json()["items"] == []
    finally:
        home.change("delete from outbox_limit")
    assert sender.post(PATH, json={"text": "hello"}).status_code == 202


def test_a_lost_connection_to_the_database_costs_nobody_a_request(
    face: Face, home: Home, sender: httpx.Client
) -> None:
    assert sender.post(PATH, json={"text": "hello"}).status_code == 202
    home.change("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", home.name)
    time.sleep(0.2)
    assert sender.post(PATH, json={"text": "hello"}).status_code == 202


def test_large_uploads_do_not_grow_the_process(start_process: StartFace, tenant: str) -> None:
    """Six uploads of 30 MB at once; the whole of one in memory would show."""
    size, chunk = 30 * 2**20, b"a" * 65_536
    with start_process("api", max_document_bytes=64 * 2**20) as face, face.client("ann", tenant) as client:
        client.post(PATH, files={"file": ("small.txt", b"warm", "text/plain")})
        before, most, done = resident_bytes(face.pid), 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.wait(0.01):
                most = max(most, resident_bytes(face.pid))

        def body() -> Iterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
            for _ in range(size // len(chunk)):
                yield chunk
            yield b"\r\n--b--\r\n"

        def post() -> httpx.Response:
            with face.client("ann", tenant) as mine:
                return mine.post(PATH, content=body(), headers={"Content-Type": "multipart/form-data; boundary=b"})

        watcher = threading.Thread(target=watch)
        watcher.start()
        with concurrent.futures.ThreadPoolExecutor(6) as crowd:
            answers = [future.result() for future in [crowd.submit(post) for _ in range(6)]]
        done.set()
        watcher.join()
        assert {answer.status_code for answer in answers} == {202}
        assert {client.get(answer.headers["location"]).json()["size_bytes"] for answer in answers} == {size}
        assert most - before < size / 2, f"grew by {(most - before) / 2**20:.0f} MiB"


def test_the_api_answers_repeats_quickly(face: Face, sender: httpx.Client) -> None:
    """A repeat costs no more than a few times what an empty request does, in the same run on the same machine."""
    headers, body = key(), json.dumps({"text": "hello " * 50})
    sender.post(PATH, content=body, headers={**headers, "Content-Type": "application/json"})

    def median(call: "object") -> float:
        assert callable(call)
        times = []
        for _ in range(60):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    probe = median(lambda: sender.get("/healthz"))
    repeat = median(lambda: sender.post(PATH, content=body, headers={**headers, "Content-Type": "application/json"}))
    assert repeat < 5 * probe + 0.005


def test_a_path_is_never_made_of_what_a_client_says(face: Face, sender: httpx.Client) -> None:
    outside = Path(face.storage).parent
    before = sorted(path.name for path in outside.iterdir())
    for name in ("../escape.txt", "..\\escape.txt", "/var/escape.txt", "a" * 3000):
        assert sender.post(PATH, files={"file": (name, b"hello", "text/plain")}).status_code == 202
    assert sorted(path.name for path in outside.iterdir()) == before
    assert all(len(name) == 36 for name in face.files())


def test_a_dripping_upload_is_cut_off_and_leaves_nothing(start_process: StartFace, tenant: str) -> None:
    with start_process("api", body_grace_seconds=1, body_bytes_per_second=1000) as slow:
        token = tokens.issue(slow.secret, "ann", tenant, ["sender"], 60)
        address = urlsplit(slow.url)
        with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
            connection.sendall(
                f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
                f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n"
                '--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'.encode()
            )
            connection.settimeout(0.05)
            answer, deadline = b"", time.monotonic() + 30
            while not answer and time.monotonic() < deadline:
                with contextlib.suppress(ConnectionError):
                    connection.send(b"a")
                with contextlib.suppress(TimeoutError):
                    answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b"urn:workbot:problem:too-slow" in answer
        assert slow.files() == []
