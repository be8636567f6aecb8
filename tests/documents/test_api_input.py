"""Every bad input of the inbox: a 4xx problem that names what is at fault and says what to do; nothing is kept."""

import gzip
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from loadtest import pdf
from tests.documents.conftest import Face
from tests.fixtures.processes import Home
from web import tokens

PATH = "/api/documents"
PDF = pdf.write([["INVOICE", "Supplier: Acme"]], identity=b"0" * 16).data
BOUNDARY = "multipart/form-data; boundary=b"


@pytest.fixture
def untouched(face: Face, home: Home) -> Iterator[None]:
    """Holds that a refused request leaves no row, no event and no file behind, half-written ones included."""

    def traces() -> tuple[object, ...]:
        return home.rows("select count(*) from documents"), home.rows("select count(*) from outbox"), face.files()

    before = traces()
    yield
    assert traces() == before


def assert_problem(answer: httpx.Response, status: int, kind: str, field: str | None) -> dict[str, object]:
    body: dict[str, object] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, body["status"], body["type"]) == (status, status, f"urn:workbot:problem:{kind}")
    errors = body.get("errors", [])
    assert isinstance(errors, list)
    assert [error["field"] for error in errors] == ([field] if field else [])
    assert str(body["detail"]).endswith(".")
    return body


def part(content: bytes, headers: str = 'name="file"; filename="a.txt"', end: bytes = b"\r\n--b--\r\n") -> bytes:
    return b"--b\r\nContent-Disposition: form-data; " + headers.encode() + b"\r\n\r\n" + content + end


JSON_CASES = {
    "nothing in it": ({}, "empty", "body"),
    "two kinds": ({"text": "a", "url": "https://example.com/"}, "two-kinds", "url"),
    "unknown field": ({"txt": "a"}, "unknown-field", "txt"),
    "not an object": (["a"], "not-json", "body"),
    "a number": ({"text": 1}, "bad-text", "text"),
    "no words": ({"text": " \n"}, "empty", "text"),
    "half a character": ({"text": "a\ud800"}, "not-utf-8", "text"),
    "binary": ({"text": "a\0b"}, "bad-text", "text"),
    "no address": ({"url": ""}, "bad-url", "url"),
    "address is a list": ({"url": ["https://example.com/"]}, "bad-url", "url"),
    "words": ({"url": "see below"}, "bad-url", "url"),
    "half a character in it": ({"url": "https://example.com/\ud800"}, "bad-url", "url"),
    "other scheme": ({"url": "ftp://example.com/a"}, "bad-url", "url"),
    "local file": ({"url": "file:///etc/passwd"}, "bad-url", "url"),
    "script": ({"url": "javascript:alert(1)"}, "bad-url", "url"),
    "a blank in its name": ({"url": "http://exa mple.com"}, "bad-url", "url"),
    "credentials": ({"url": "https://ann:secret@example.com/"}, "bad-url", "url"),
    "loopback": ({"url": "http://127.0.0.1/"}, "bad-url", "url"),
    "private": ({"url": "https://192.168.1.1:8080/admin"}, "bad-url", "url"),
    "metadata service": ({"url": "http://169.254.169.254/latest/meta-data/"}, "bad-url", "url"),
    "localhost": ({"url": "http://localhost:5432/"}, "bad-url", "url"),
    "decimal loopback": ({"url": "http://2130706433/"}, "bad-url", "url"),
    "IPv6 loopback": ({"url": "http://[::1]/"}, "bad-url", "url"),
    "endless address": ({"url": "https://example.com/" + "a" * 3000}, "bad-url", "url"),
}


@pytest.mark.parametrize("case", JSON_CASES)
@pytest.mark.usefixtures("untouched")
def test_bad_json(sender: httpx.Client, case: str) -> None:
    body, kind, field = JSON_CASES[case]
    answer = sender.post(PATH, content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert_problem(answer, 422, kind, field)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"b": 1, "a": 1, "text": " "}, ["a", "b", "text"]),
        ({"a": 1, "text": "x", "url": "https://example.com/"}, ["a", "url"]),
        ({f"x{number:03}": 1 for number in range(100)}, [f"x{number:03}" for number in range(20)]),
    ],
)
@pytest.mark.usefixtures("untouched")
def test_all_that_is_wrong_is_told_at_once(sender: httpx.Client, body: dict[str, object], fields: list[str]) -> None:
    answer = sender.post(PATH, json=body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:workbot:problem:bad-input")
    assert [error["field"] for error in answer.json()["errors"]] == fields


@pytest.mark.usefixtures("untouched")
def test_a_private_address_names_the_setting_that_would_allow_it(sender: httpx.Client) -> None:
    told = assert_problem(sender.post(PATH, json={"url": "http://127.0.0.1:9999/"}), 422, "bad-url", "url")
    assert "WORKBOT_FETCH_ALLOW" in str(told["detail"])


BODY_CASES = {
    "nothing": (None, b"", 422, "empty", "body"),
    "nothing, as JSON": ("application/json", b"", 422, "empty", "body"),
    "blanks": ("application/json", b" \n", 422, "empty", "body"),
    "nothing, as multipart": (BOUNDARY, b"", 422, "empty", "body"),
    "not JSON": ("application/json", b"{text: hello}", 422, "not-json", "body"),
    "deep JSON": ("application/json", b"[" * 60_000, 422, "not-json", "body"),
    "JSON in Latin-1": ("application/json", '{"text":"café"}'.encode("latin-1"), 422, "not-utf-8", "text"),
    "JSON too long": ("application/json", b'{"text":"' + b"a" * 70_000 + b'"}', 413, "too-large", "text"),
    "another type": ("application/xml", b"<text/>", 415, "unknown-type", "Content-Type"),
    "no type": (None, b"hello", 415, "unknown-type", "Content-Type"),
    "a form": ("application/x-www-form-urlencoded", b"text=hello", 415, "unknown-type", "Content-Type"),
    "no boundary": ("multipart/form-data", part(b"x"), 422, "bad-multipart", "Content-Type"),
    "no multipart": (BOUNDARY, b"hello", 422, "bad-multipart", "body"),
    "cut off in the file": (BOUNDARY, part(b"x", end=b""), 422, "cut-off", "body"),
    "cut off in the headers": (BOUNDARY, b"--b\r\nContent-Dispo", 422, "cut-off", "body"),
    "no part at all": (BOUNDARY, b"--b--\r\n", 422, "missing", "file"),
    "another part": (BOUNDARY, part(b"x", 'name="document"'), 422, "unknown-field", "document"),
    "a part without a name": (BOUNDARY, part(b"x", 'filename="a.txt"'), 422, "unknown-field", "body"),
    "text and file": (
        BOUNDARY,
        part(b"x", 'name="text"', end=b"\r\n") + part(b"y"),
        422,
        "not-a-part",
        "text",
    ),
    "a text as a part": (BOUNDARY, part(b"hello", 'name="text"'), 422, "not-a-part", "text"),
    "an address as a part": (BOUNDARY, part(b"https://example.com/", 'name="url"'), 422, "not-a-part", "url"),
    "two files": (BOUNDARY, part(b"x", end=b"\r\n") + part(b"y"), 422, "two-kinds", "file"),
    "endless part header": (BOUNDARY, part(b"x", "a" * 100_000), 422, "bad-multipart", "body"),
}


@pytest.mark.parametrize("case", BODY_CASES)
@pytest.mark.usefixtures("untouched")
def test_bad_bodies(sender: httpx.Client, case: str) -> None:
    content_type, body, status, kind, field = BODY_CASES[case]
    answer = sender.post(PATH, content=body, headers={"Content-Type": content_type} if content_type else {})
    assert_problem(answer, status, kind, field)


FILE_CASES = {
    "0 bytes": (b"", "application/pdf", "a.pdf", "empty"),
    "0 bytes of text": (b"", None, "a.txt", "empty"),
    "only blanks": (b" \r\n\t", "text/plain", "a.txt", "empty"),
    "an image": (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "image/png", "a.png", "unknown-type"),
    "an image in disguise": (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "application/octet-stream", "a.pdf", "unknown-type"),
    "an Office document": (b"PK\x03\x04" + b"\0" * 40, None, "a.docx", "unknown-type"),
    "an Office type": (b"hello", "application/msword", "a.doc", "unknown-type"),
    "binary": (b"hello\0world", None, "a.bin", "unknown-type"),
    "no PDF although declared": (b"hello", "application/pdf", "a.pdf", "type-mismatch"),
    "a PDF declared as text": (PDF, "text/plain", "a.txt", "type-mismatch"),
    "Latin-1": ("café".encode("latin-1"), "text/plain", "a.txt", "not-utf-8"),
    "UTF-16": ("hello".encode("utf-16"), "text/plain", "a.txt", "not-utf-8"),
    "UTF-8 that ends in the middle": ("€".encode()[:2], "text/plain", "a.txt", "not-utf-8"),
    "UTF-8 that breaks late": (b"a" * 300_000 + b"\xff", "text/plain", "a.txt", "not-utf-8"),
}


@pytest.mark.parametrize("case", FILE_CASES)
@pytest.mark.usefixtures("untouched")
def test_bad_files(sender: httpx.Client, case: str) -> None:
    content, content_type, name, kind = FILE_CASES[case]
    sent = (name, content) if content_type is None else (name, content, content_type)
    assert_problem(sender.post(PATH, files={"file": sent}), 422, kind, "file")


@pytest.mark.usefixtures("untouched")
def test_a_compressed_body(sender: httpx.Client) -> None:
    body = gzip.compress(b'{"text": "hello"}')
    answer = sender.post(PATH, content=body, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert_problem(answer, 415, "unknown-encoding", "Content-Encoding")


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"a\tb", "clé".encode("latin-1")])
@pytest.mark.usefixtures("untouched")
def test_bad_idempotency_keys(sender: httpx.Client, key: bytes) -> None:
    answer = sender.post(PATH, json={"text": "hello"}, headers={b"Idempotency-Key": key})
    assert_problem(answer, 422, "bad-idempotency-key", "Idempotency-Key")


@pytest.mark.usefixtures("untouched")
def test_a_bad_key_is_told_of_with_what_is_wrong_in_the_body(sender: httpx.Client) -> None:
    headers = {"Idempotency-Key": "x" * 256}
    answer = sender.post(PATH, json={"a": 1, "text": " "}, headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:workbot:problem:bad-input")
    assert [error["field"] for error in answer.json()["errors"]] == ["Idempotency-Key", "a", "text"]
    nothing = sender.post(PATH, content=b"", headers={**headers, "Content-Type": "application/json"})
    assert [error["field"] for error in nothing.json()["errors"]] == ["Idempotency-Key", "body"]
    # A file is not read for it.
    answer = sender.post(PATH, files={"file": ("a.txt", b"")}, headers=headers)
    assert_problem(answer, 422, "bad-idempotency-key", "Idempotency-Key")


@pytest.mark.parametrize("kind", ["application/vnd.acme.order+json", "Application/Problem+JSON; charset=utf-8"])
def test_json_by_another_name_is_json(sender: httpx.Client, kind: str) -> None:
    answer = sender.post(PATH, content=b'{"text": "hello"}', headers={"Content-Type": kind})
    assert answer.status_code == 202
    answer = sender.post(PATH, content=b'{"text": " "}', headers={"Content-Type": kind})
    assert_problem(answer, 422, "empty", "text")


@pytest.mark.usefixtures("untouched")
def test_a_file_above_the_limit_is_refused_as_soon_as_its_size_is_declared(sender: httpx.Client) -> None:
    body = assert_problem(sender.post(PATH, files={"file": ("a.txt", b"a" * 1_100_000)}), 413, "too-large", "file")
    assert "1000000 bytes" in str(body["detail"])


@pytest.mark.usefixtures("untouched")
def test_a_file_above_the_limit_is_cut_off_when_its_size_is_not_declared(face: Face, tenant: str) -> None:
    """A client that sends for ever gets its answer after the limit, and the end of the connection."""
    token = tokens.issue(face.secret, "ann", tenant, ["sender"], 60)
    address = urlsplit(face.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: {BOUNDARY}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        head = part(b"", end=b"")
        connection.sendall(b"%x\r\n%s\r\n" % (len(head), head))
        piece = b"a" * 65_536
        sent = 0
        answer = b""
        connection.setblocking(False)
        deadline = time.monotonic() + 20
        while b"\r\n\r\n" not in answer and time.monotonic() < deadline:
            try:
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
                sent += len(piece)
            except (BlockingIOError, ConnectionError):
                time.sleep(0.001)
            try:
                answer += connection.recv(65_536)
            except BlockingIOError:
                continue
            except ConnectionError:
                break
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert b"connection: close" in answer.lower()
    assert sent < 20_000_000


@pytest.mark.usefixtures("untouched")
def test_a_request_that_breaks_off_leaves_nothing(face: Face, tenant: str) -> None:
    """The client goes away in the middle of its upload, after part of it has reached the disk."""
    token = tokens.issue(face.secret, "ann", tenant, ["sender"], 60)
    address = urlsplit(face.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        body = part(b"a" * 600_000, end=b"")
        connection.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: {BOUNDARY}\r\nContent-Length: 900000\r\n\r\n".encode()
            + body
        )
        _until(lambda: len(list((face.storage / "incoming").iterdir())) == 1)
    _until(lambda: not list((face.storage / "incoming").iterdir()))


@pytest.mark.usefixtures("untouched")
def test_without_a_valid_token_nothing_is_taken(face: Face) -> None:
    forged = tokens.issue("f" * 40, "ann", "acme", ["admin"], 60)
    old = tokens.issue(face.secret, "ann", "acme", ["admin"], -10)
    for header in (None, "Basic YTpi", f"Bearer {forged}", f"Bearer {old}", "Bearer nonsense"):
        headers = {} if header is None else {"Authorization": header}
        for method, path in (("POST", PATH), ("GET", PATH), ("GET", f"{PATH}/{'0' * 8}-0000-7000-8000-{'0' * 12}")):
            answer = httpx.request(
                method,
                face.url + path,
                headers=headers,
                json={"text": "x"} if method == "POST" else None,
                trust_env=False,
            )
            assert_problem(answer, 401, "unauthorized", "Authorization")


@pytest.mark.usefixtures("untouched")
def test_a_viewer_hands_nothing_in(face: Face, tenant: str) -> None:
    with face.client("vic", tenant, "viewer") as viewer:
        assert_problem(viewer.post(PATH, json={"text": "hello"}), 403, "wrong-role", "Authorization")


def test_broken_pdfs_are_taken_because_only_reading_can_tell(sender: httpx.Client) -> None:
    for content in (PDF[: len(PDF) // 2], b"%PDF-1.7 and nothing more"):
        assert sender.post(PATH, files={"file": ("a.pdf", content, "application/pdf")}).status_code == 202


def test_the_name_and_type_a_file_is_kept_under(sender: httpx.Client) -> None:
    sent = {
        "../../etc/passwd": ("passwd", "text/plain", b"hello"),
        "C:\\docs\\Rechnung März.pdf": ("Rechnung März.pdf", "application/pdf", PDF),
        "page.html": ("page.html", "text/html", b"<p>hello</p>"),
        "no type": ("no type", "application/pdf", PDF),
    }
    for name, (kept, kind, content) in sent.items():
        answer = sender.post(PATH, files={"file": (name, content, "application/octet-stream")})
        document = sender.get(answer.headers["location"]).json()
        assert (document["file_name"], document["content_type"], document["size_bytes"]) == (kept, kind, len(content))


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
