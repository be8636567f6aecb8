"""Requests over HTTP: what is taken, who sees what, pages, and every bad input named."""

import concurrent.futures
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fixtures.processes import Home, Running
from tests.gateway.conftest import Start

PATH = "/api/requests"
ASK = {"title": "The printer is jammed", "body": "Second floor.", "team": "IT"}


@pytest.fixture(scope="module")
def gateway(start: Start) -> Iterator[Running]:
    with start("api") as running:
        yield running


@pytest.fixture
def ann(gateway: Running, tenant: str) -> Iterator[httpx.Client]:
    """A sender named ann."""
    with gateway.client("ann", tenant, "sender") as client:
        yield client


def traces(home: Home) -> tuple[object, ...]:
    return home.rows("select count(*) from requests"), home.rows("select count(*) from outbox")


def key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def refused(answer: httpx.Response, status: int, field: str | None) -> str:
    """Holds that it is a problem about this field; its detail."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert [error["field"] for error in body.get("errors", [])] == ([] if field is None else [field])
    assert str(body["detail"]).endswith(".")
    return str(body["detail"])


def test_a_request_is_filed_and_shown(gateway: Running, ann: httpx.Client) -> None:
    filed = ann.post(PATH, json=ASK)
    assert filed.status_code == 201, filed.text
    told = filed.json()
    assert uuid.UUID(told["id"]).version == 7
    assert told["href"] == filed.headers["location"] == f"{PATH}/{told['id']}"
    shown = ann.get(told["href"]).json()
    assert shown.pop("created_at").endswith("Z")
    assert shown == {**ASK, **told, "sender": "ann", "channel": "api"}


def test_what_surrounds_title_and_team_goes_and_the_body_stays(ann: httpx.Client) -> None:
    asked = {"title": " \n New chair\t", "team": " Büro 2 👩‍💻".replace("\u200d", ""), "body": " a\r\n\tb \n"}
    shown = ann.get(ann.post(PATH, json=asked).json()["href"]).json()
    assert (shown["title"], shown["body"]) == ("New chair", " a\r\n\tb \n")
    assert shown["team"] == asked["team"].strip()
    without = ann.post(PATH, json={"title": "x", "team": "IT"})
    assert ann.get(without.json()["href"]).json()["body"] == ""


@pytest.mark.parametrize(
    "asked",
    [
        {"title": "x" * 200},
        {"title": "👩‍💻 é 世界"},
        {"body": "é" * 20_000},
        {"body": "👩" * 20_000},
        {"team": "x" * 100},
        {"team": "世" * 63},
    ],
    ids=["title", "any script", "body", "wide body", "team", "wide team"],
)
def test_the_largest_is_taken(ann: httpx.Client, asked: dict[str, str]) -> None:
    answer = ann.post(PATH, json=ASK | asked)
    assert answer.status_code == 201, answer.text
    shown = ann.get(answer.json()["href"]).json()
    assert {name: shown[name] for name in asked} == asked


BAD: dict[str, tuple[Any, str]] = {
    "no title": ({"team": "IT"}, "title"),
    "no team": ({"title": "x"}, "team"),
    "empty title": (ASK | {"title": ""}, "title"),
    "a blank title": (ASK | {"title": " \n"}, "title"),
    "a long title": (ASK | {"title": "x" * 201}, "title"),
    "two lines": (ASK | {"title": "a\nb"}, "title"),
    "two lines of Unicode": (ASK | {"title": "a\u2028b"}, "title"),
    "NUL in the title": (ASK | {"title": "a\0b"}, "title"),
    "an escape in the title": (ASK | {"title": "a\x1b[31mb"}, "title"),
    "half a character in the title": (ASK | {"title": "a\ud800"}, "title"),
    "title is a number": (ASK | {"title": 1}, "title"),
    "a long body": (ASK | {"body": "x" * 20_001}, "body"),
    "NUL in the body": (ASK | {"body": "a\0b"}, "body"),
    "a bell in the body": (ASK | {"body": "a\ab"}, "body"),
    "half a character in the body": (ASK | {"body": "a\udfff"}, "body"),
    "body is null": (ASK | {"body": None}, "body"),
    "empty team": (ASK | {"team": " "}, "team"),
    "a long team": (ASK | {"team": "x" * 101}, "team"),
    "a wide team": (ASK | {"team": "世" * 64}, "team"),
    "a colon in the team": (ASK | {"team": "a:b"}, "team"),
    "a line break in the team": (ASK | {"team": "a\nb"}, "team"),
    "half a character in the team": (ASK | {"team": "a\ud800"}, "team"),
    "team is a list": (ASK | {"team": ["IT"]}, "team"),
    "another field": (ASK | {"priority": 1}, "priority"),
    "somebody else's": (ASK | {"sender": "bob"}, "sender"),
    "a list": ([ASK], "body"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_leaves_nothing(home: Home, ann: httpx.Client, case: str) -> None:
    asked, field = BAD[case]
    before = traces(home)
    detail = refused(
        ann.post(PATH, content=json.dumps(asked), headers={"Content-Type": "application/json"}), 422, field
    )
    assert any(word in detail.lower() for word in ("send", "say", "name", "put", "take", "there are")), detail
    assert traces(home) == before


def test_all_that_is_wrong_is_told_at_once(home: Home, ann: httpx.Client) -> None:
    before = traces(home)
    wrong = {"title": " ", "body": "a\0b", "team": "a:b"}
    answer = ann.post(PATH, json=wrong, headers={"Idempotency-Key": "x" * 256})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:workbot:problem:bad-input")
    told = {error["field"]: error["detail"] for error in answer.json()["errors"]}
    assert list(told) == ["Idempotency-Key", "title", "body", "team"]
    assert answer.json()["detail"] == " ".join(f"{field}: {detail}" for field, detail in told.items())
    assert traces(home) == before


def test_each_limit_of_a_teams_name_is_told_by_itself(ann: httpx.Client) -> None:
    wide = refused(ann.post(PATH, json=ASK | {"team": "é" * 96}), 422, "team")
    assert "190 bytes" in wide
    assert "has 192" in wide
    assert "characters" not in wide
    long = refused(ann.post(PATH, json=ASK | {"team": "x" * 101}), 422, "team")
    assert "100 characters" in long
    assert "bytes" not in long


@pytest.mark.parametrize(
    "body", [b"", b"{", b"title=x", b"\xff", b"[" * 60_000], ids=["empty", "cut", "form", "Latin-1", "deep"]
)
def test_what_is_no_json(ann: httpx.Client, body: bytes) -> None:
    refused(ann.post(PATH, content=body, headers={"Content-Type": "application/json"}), 422, "body")


def test_a_body_of_another_type_or_without_end(ann: httpx.Client) -> None:
    assert "Content-Type: application/json" in refused(ann.post(PATH, data=ASK), 415, "Content-Type")
    refused(ann.post(PATH, content=b"", headers={"Content-Type": "text/plain"}), 422, "body")
    assert ann.post(PATH, content=json.dumps(ASK), headers={"Content-Type": "application/problem+json"}).is_success
    refused(ann.post(PATH, json=ASK | {"body": "x" * 2**20}), 413, "body")


def test_the_same_key_and_body_is_the_same_request(home: Home, ann: httpx.Client) -> None:
    headers = key()
    first, again = (ann.post(PATH, json=ASK, headers=headers) for _ in range(2))
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert home.rows("select count(*) from outbox where subject = %s", first.json()["id"]) == [(1,)]
    assert ann.post(PATH, json=ASK).json() != first.json(), "without a key each is a request of its own"


@pytest.mark.parametrize("change", [{"title": "y"}, {"body": ""}, {"team": "HR"}])
def test_the_same_key_and_another_body_is_refused(home: Home, ann: httpx.Client, change: dict[str, str]) -> None:
    headers = key()
    ann.post(PATH, json=ASK, headers=headers)
    before = traces(home)
    refused(ann.post(PATH, json=ASK | change, headers=headers), 422, "Idempotency-Key")
    assert traces(home) == before


@pytest.mark.parametrize("bad", [b"", b"x" * 256, b"a\tb", "clé".encode("latin-1")])
def test_a_bad_key_is_named(home: Home, ann: httpx.Client, bad: bytes) -> None:
    before = traces(home)
    refused(ann.post(PATH, json=ASK, headers={b"Idempotency-Key": bad}), 422, "Idempotency-Key")
    assert traces(home) == before


def test_a_key_belongs_to_its_sender(gateway: Running, tenant: str) -> None:
    headers, people = key(), (("ann", tenant), ("bob", tenant), ("ann", f"{tenant}-2"))
    ids = set()
    for sub, whose in people:
        with gateway.client(sub, whose, "sender") as client:
            ids.add(client.post(PATH, json=ASK, headers=headers).json()["id"])
    assert len(ids) == 3


def test_twenty_at_once_with_one_key_are_one_request(gateway: Running, home: Home, tenant: str) -> None:
    headers, ready = key(), threading.Barrier(20)

    def post() -> httpx.Response:
        with gateway.client("ann", tenant, "sender") as client:
            client.get(PATH)
            ready.wait()
            return client.post(PATH, json=ASK, headers=headers)

    with concurrent.futures.ThreadPoolExecutor(20) as crowd:
        answers = [future.result() for future in [crowd.submit(post) for _ in range(20)]]
    assert {answer.status_code for answer in answers} == {201}
    (request_id,) = {answer.json()["id"] for answer in answers}
    assert home.rows("select id::text from requests where tenant = %s", tenant) == [(request_id,)]
    assert home.rows("select subject from outbox where key = %s", f"{tenant}:ann") == [(request_id,)]


def test_who_may_file(gateway: Running, home: Home, tenant: str) -> None:
    for role in ("sender", "reviewer", "agent", "admin"):
        with gateway.client("ann", tenant, role) as client:
            assert client.post(PATH, json=ASK).status_code == 201
    before = traces(home)
    with gateway.client("ann", tenant, "viewer") as viewer:
        refused(viewer.post(PATH, json=ASK), 403, "Authorization")
    assert httpx.post(gateway.url + PATH, json=ASK, trust_env=False).status_code == 401
    assert traces(home) == before


def test_a_sender_sees_their_own_and_staff_the_tenants(gateway: Running, tenant: str) -> None:
    ids = {}
    for sub, whose in (("ann", tenant), ("bob", tenant), ("eve", f"{tenant}-2")):
        with gateway.client(sub, whose, "sender") as client:
            ids[sub] = client.post(PATH, json=ASK).json()["id"]
    with gateway.client("ann", tenant, "sender") as ann:
        assert [item["id"] for item in ann.get(PATH).json()["items"]] == [ids["ann"]]
        assert ann.get(PATH, params={"sender": "ann"}).json() == ann.get(PATH).json()
        refused(ann.get(PATH, params={"sender": "bob"}), 403, "sender")
        for other in ("bob", "eve"):
            refused(ann.get(f"{PATH}/{ids[other]}"), 404, "id")
    for role in ("reviewer", "viewer", "agent", "admin"):
        with gateway.client("zoe", tenant, role) as staff:
            assert {item["id"] for item in staff.get(PATH).json()["items"]} == {ids["ann"], ids["bob"]}
            assert [i["id"] for i in staff.get(PATH, params={"sender": "bob"}).json()["items"]] == [ids["bob"]]
            assert staff.get(f"{PATH}/{ids['bob']}").json()["sender"] == "bob"
            refused(staff.get(f"{PATH}/{ids['eve']}"), 404, "id")
            assert staff.get(PATH, params={"sender": "eve"}).json() == {"items": [], "next": None}


def test_pages_newest_first_by_team_and_sender(gateway: Running, tenant: str) -> None:
    filed: list[tuple[str, str, str]] = []
    with gateway.client("ann", tenant, "sender") as ann, gateway.client("bob", tenant, "sender") as bob:
        for number in range(12):
            sub, client = ("bob", bob) if number % 3 == 0 else ("ann", ann)
            team = "HR" if number % 2 else "IT"
            filed.insert(0, (client.post(PATH, json=ASK | {"team": team}).json()["id"], sub, team))
    with gateway.client("zoe", tenant, "viewer") as staff:
        assert walked(staff, 5) == [request_id for request_id, _, _ in filed]
        assert walked(staff, 2, team="HR") == [request_id for request_id, _, team in filed if team == "HR"]
        assert walked(staff, 1, team="IT", sender="bob") == [
            request_id for request_id, sub, team in filed if (sub, team) == ("bob", "IT")
        ]
        assert walked(staff, 5, team="it") == []
        exact = staff.get(PATH, params={"limit": 12}).json()
        assert (len(exact["items"]), exact["next"]) == (12, None)


def walked(client: httpx.Client, limit: int, **wanted: str) -> list[str]:
    """All ids, page by page."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get(PATH, params={"limit": str(limit), **wanted, **cursor}).json()
        assert len(page["items"]) <= limit
        found += [item["id"] for item in page["items"]]
        if page["next"] is None:
            return found
        cursor = {"cursor": page["next"]}


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"cursor": "x"}, "cursor"),
        ({"limit": "0"}, "limit"),
        ({"limit": "201"}, "limit"),
        ({"team": "a\0"}, "team"),
        ({"sender": "a\n"}, "sender"),
    ],
)
def test_bad_parameters(gateway: Running, tenant: str, parameters: dict[str, str], field: str) -> None:
    with gateway.client("zoe", tenant, "viewer") as staff:
        refused(staff.get(PATH, params=parameters), 422, field)


@pytest.mark.parametrize("unknown", ["0d6f6a8e-5a2c-4a53-9d8e-2f7b1c3e4a5d", "x", "a%20b"])
def test_an_unknown_request(ann: httpx.Client, unknown: str) -> None:
    refused(ann.get(f"{PATH}/{unknown}"), 404, "id")
