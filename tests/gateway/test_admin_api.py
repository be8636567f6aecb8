"""Dead letters over HTTP: who sees what, who may do what, and that one click is one click."""

import asyncio
import base64
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from messaging.message import new_id
from schemas import topics
from services.gateway.letters import Headers, Letter
from services.gateway.store import worker
from tests.fixtures.processes import Home, Running, token
from tests.gateway.conftest import Start

PATH = "/api/admin/dead-letters"
OPERATOR = "operators"
LISTED = topics.load().dead_letter_topics()[0]
ROLES = ("sender", "viewer", "reviewer", "agent", "admin")


@pytest.fixture(scope="module")
def api(start: Start) -> Iterator[Running]:
    with start("api", operator_tenant=OPERATOR, documents_url="http://127.0.0.1:1", database_pool=10) as running:
        yield running


@pytest.fixture
def admin(api: Running, tenant: str) -> Iterator[httpx.Client]:
    with api.client("root", tenant) as client:
        yield client


def letter(
    tenant: str | None,
    *,
    owner: str | None = "ann",
    reason: str = "malformed",
    died_at: datetime | None = None,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Headers | None = None,
    unreadable: bool = False,
    source: str = LISTED.source,
) -> Letter:
    return Letter(
        source=source,
        consumer=LISTED.consumer,
        message_id=str(new_id()),
        generation=0,
        tenant=tenant,
        owner=None if tenant is None else owner,
        type="document.reading_requested",
        subject="doc-1",
        reason=reason,
        error="It breaks off.",
        attempts=1,
        origin="documents.jobs/0/1",
        topic=LISTED.name,
        partition=0,
        offset=1,
        died_at=died_at or datetime.now(UTC),
        key=key,
        value=value,
        headers=None if unreadable else headers or [],
    )


def have(home: Home, letters: Sequence[Letter]) -> list[str]:
    """Put letters into the table; returns their ids, in the order given."""

    async def add() -> None:
        async with await psycopg.AsyncConnection.connect(home.conninfo) as conn:
            assert await worker.add(conn, letters) == len(letters)

    asyncio.run(add())
    ids = {row[0]: str(row[1]) for row in home.rows("select message_id, id from dead_letters")}
    return [ids[letter.message_id] for letter in letters]


def state(home: Home, letter_id: str) -> tuple[object, ...]:
    (row,) = home.rows("select state, decided_by from dead_letters where id = %s", letter_id)
    return row


@pytest.mark.parametrize("role", ROLES)
def test_who_may_do_what(api: Running, home: Home, tenant: str, role: str) -> None:
    letter_ids = have(home, [letter(tenant), letter(tenant)])
    staff, decides = role != "sender", role == "admin"
    with api.client("eve", tenant, role) as eve:
        for path in (PATH, f"{PATH}/{letter_ids[0]}"):
            assert eve.get(path).status_code == (200 if staff else 403)
        for letter_id, action, answer in zip(letter_ids, ("send-back", "discard"), (202, 200), strict=True):
            assert eve.post(f"{PATH}/{letter_id}/{action}").status_code == (answer if decides else 403)
            assert eve.post(f"{PATH}/{action}", json={"owner": "nobody"}).status_code == (answer if decides else 403)
    if not decides:
        assert {state(home, letter_id) for letter_id in letter_ids} == {("open", None)}


def test_another_tenant_s_letter_is_not_there(api: Running, home: Home, tenant: str) -> None:
    mine, theirs, nobodys = have(home, [letter(tenant), letter(f"{tenant}-2"), letter(None)])
    with api.client("root", tenant) as root:
        assert [item["id"] for item in root.get(PATH).json()["items"]] == [mine]
        for other in (theirs, nobodys, str(new_id()), "no-id"):
            assert root.get(f"{PATH}/{other}").status_code == 404
            for action in ("send-back", "discard"):
                assert root.post(f"{PATH}/{other}/{action}").status_code == 404
        assert root.post(f"{PATH}/discard", json={"source": LISTED.source}).json() == {"letters": 1}
    assert state(home, theirs) == state(home, nobodys) == ("open", None)


def test_a_letter_without_a_tenant_is_the_operator_s(api: Running, home: Home, tenant: str) -> None:
    (first, second) = have(home, [letter(None, reason=tenant), letter(None, reason=tenant)])
    unowned = {"reason": tenant, "unowned": "true"}
    with api.client("root", tenant) as root, api.client("eve", OPERATOR, "viewer") as viewer:
        for nobody in (root, viewer):
            refused = nobody.get(PATH, params=unowned)
            assert refused.status_code == 403
            assert "WORKBOT_OPERATOR_TENANT" in refused.json()["detail"]
        assert viewer.get(f"{PATH}/{first}").status_code == 404
    with api.client("op", OPERATOR) as operator:
        assert operator.get(PATH, params={"reason": tenant}).json()["items"] == []
        assert {item["id"] for item in operator.get(PATH, params=unowned).json()["items"]} == {first, second}
        assert operator.get(f"{PATH}/{first}").json()["owner"] is None
        assert operator.post(f"{PATH}/{first}/discard").status_code == 200
        assert operator.post(f"{PATH}/send-back", json={"reason": tenant, "unowned": True}).json() == {"letters": 1}
    assert (state(home, first), state(home, second)) == (("discarded", "op"), ("sending", "op"))


async def test_of_a_hundred_clicks_one_is_first(api: Running, home: Home, tenant: str) -> None:
    (letter_id,) = await asyncio.to_thread(have, home, [letter(tenant)])
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=30, limits=limits) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    f"{PATH}/{letter_id}/send-back",
                    headers={"Authorization": f"Bearer {token(f'admin-{n}', tenant)}"},
                )
                for n in range(100)
            )
        )
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 99
    (first,) = [answer.json() for answer in answers if answer.status_code == 202]
    assert (first["state"], first["decided_by"]) == ("sending", state(home, letter_id)[1])
    told = {answer.json()["detail"] for answer in answers if answer.status_code == 409}
    assert len(told) == 1
    assert told.pop().startswith(f"This letter was sent back by {first['decided_by']} at 20")


def test_a_decision_is_final(admin: httpx.Client, home: Home, tenant: str) -> None:
    (discarded,) = have(home, [letter(tenant)])
    assert admin.post(f"{PATH}/{discarded}/discard").json()["state"] == "discarded"
    for action in ("discard", "send-back"):
        again = admin.post(f"{PATH}/{discarded}/{action}")
        assert (again.status_code, again.json()["type"]) == (409, "urn:workbot:problem:discarded")


def test_what_cannot_be_sent_back_as_it_was_is_not(admin: httpx.Client, home: Home, tenant: str) -> None:
    unreadable, orphan = have(home, [letter(tenant, unreadable=True), letter(tenant, source="old.topic")])
    for letter_id, kind in ((unreadable, "unreadable-headers"), (orphan, "no-such-consumer")):
        answer = admin.post(f"{PATH}/{letter_id}/send-back")
        assert (answer.status_code, answer.json()["type"]) == (409, f"urn:workbot:problem:{kind}")
        assert admin.get(f"{PATH}/{letter_id}").json()["state"] == "open"
    assert admin.get(f"{PATH}/{unreadable}").json()["headers"] is None


def test_filters_and_pages(admin: httpx.Client, home: Home, tenant: str) -> None:
    ids = have(home, [letter(tenant, owner=f"s{n % 3}", reason="broken" if n % 2 else "slow") for n in range(12)])
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = admin.get(PATH, params={"limit": "5", **cursor}).json()
        found += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert found == sorted(ids, reverse=True)
    for wanted, count in (
        ({"owner": "s1"}, 4),
        ({"reason": "slow"}, 6),
        ({"owner": "s1", "reason": "slow"}, 2),
        ({"source": LISTED.source}, 12),
        ({"source": "other"}, 0),
        ({"state": "open"}, 12),
        ({"state": "sent"}, 0),
    ):
        assert len(admin.get(PATH, params=wanted).json()["items"]) == count, wanted


def test_many_are_decided_on_by_filter_only(admin: httpx.Client, home: Home, tenant: str) -> None:
    now = datetime.now(UTC)
    old, new = have(home, [letter(tenant, died_at=now - timedelta(days=2)), letter(tenant)])
    for body, field in (
        ({}, "body"),
        ({"unowned": False}, "body"),
        ({"before": "yesterday"}, "before"),
        ({"x": 1}, "x"),
    ):
        refused = admin.post(f"{PATH}/send-back", json=body)
        assert refused.status_code == 422
        assert [fault["field"] for fault in refused.json()["errors"]] == [field]
    before = (now - timedelta(days=1)).isoformat()
    answer = admin.post(f"{PATH}/send-back", json={"before": before})
    assert (answer.status_code, answer.json()) == (202, {"letters": 1})
    assert (state(home, old), state(home, new)) == (("sending", "root"), ("open", None))


def test_a_filter_that_cannot_be_is_told_what_can(admin: httpx.Client) -> None:
    path = f"{PATH}/discard"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    unread = admin.post(path, content='{"reason": "x"}', headers=form)
    extra = admin.post(path, json={"sender": "ann"})
    unzoned = admin.post(path, json={"before": "2026-05-04T12:00:00"})
    assert [answer.status_code for answer in (unread, extra, unzoned)] == [415, 422, 422]
    assert "Content-Type: application/json" in unread.json()["detail"]
    assert "before, owner, reason, source, unowned" in extra.json()["detail"]
    assert "2026-05-04T12:30:00Z" in unzoned.json()["detail"]


def test_one_letter_shows_its_record_within_bounds(admin: httpx.Client, home: Home, tenant: str) -> None:
    value = "ä".encode() * 600_000
    headers: Headers = [("x", None), ("x", b""), ("x", b"\xff\x00"), *((f"h{n}", b"v" * 5000) for n in range(150))]
    (letter_id,) = have(home, [letter(tenant, key=b"\xff", value=value, headers=headers)])
    answer = admin.get(f"{PATH}/{letter_id}")
    assert len(answer.content) < 200_000
    shown = answer.json()
    assert shown["key"] == {"bytes": 1, "text": None, "base64": base64.b64encode(b"\xff").decode(), "cut_off": False}
    assert (shown["value"]["bytes"], shown["value"]["cut_off"]) == (1_200_000, True)
    assert shown["value"]["text"] == "ä" * 1024
    assert shown["headers"][:3] == [
        {"name": "x", "value": None},
        {"name": "x", "value": {"bytes": 0, "text": "", "base64": None, "cut_off": False}},
        {"name": "x", "value": {"bytes": 2, "text": None, "base64": "/wA=", "cut_off": False}},
    ]
    assert shown["headers_left_out"] == 53
    assert shown["size_bytes"] == 1 + 1_200_000 + 3 + 2 + sum(len(n) + len(v or b"") for n, v in headers[3:])


def test_a_letter_of_nothing(admin: httpx.Client, home: Home, tenant: str) -> None:
    (letter_id,) = have(home, [letter(tenant, key=None, value=None)])
    shown = admin.get(f"{PATH}/{letter_id}").json()
    assert (shown["key"], shown["value"], shown["headers"]) == (None, None, [])


def test_without_a_token(api: Running) -> None:
    for path in (PATH, "/api/admin/consumers", "/api/admin/queues", "/api/documents"):
        answer = httpx.get(api.url + path, trust_env=False)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


def test_a_service_that_is_away_takes_nothing_else_with_it(admin: httpx.Client) -> None:
    answer = admin.post("/api/documents", content=bytes(2**20))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["type"] == "urn:workbot:problem:service-away"
    assert admin.get(PATH).status_code == 200
