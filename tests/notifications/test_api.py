"""The list over HTTP: who sees what, what was read, and what is refused."""

import time
import uuid
from collections.abc import Callable

import httpx
import pytest

from tests.fixtures.processes import Home, Running
from tests.notifications.conftest import Speaker, read, request

PATH = "/api/notifications"


def wait_for(client: httpx.Client, count: int, seconds: float = 30.0, **query: object) -> list[dict[str, object]]:
    """The list once it holds so many."""
    deadline = time.monotonic() + seconds
    while True:
        items: list[dict[str, object]] = client.get(PATH, params={"limit": 200, **query}).json()["items"]
        if len(items) >= count:
            return items
        assert time.monotonic() < deadline, items
        time.sleep(0.05)


async def test_everybody_sees_what_is_theirs(face: Running, speaker: Speaker, tenant: str) -> None:
    await speaker.say(read(tenant, "ann"), read(tenant, "bob", "waiting_for_review"), request(tenant, "bob"))
    with face.client("rob", tenant, "reviewer") as staff:
        seen = wait_for(staff, 2)
        assert {(item["kind"], item["team"]) for item in seen} == {
            ("document_waits", "reviewers"),
            ("request_created", "it"),
        }
        (only,) = wait_for(staff, 1, team="it")
        assert only["title"] == "New request: The printer is jammed"
    with face.client("ann", tenant, "sender") as ann:
        (mine,) = wait_for(ann, 1)
        assert (mine["kind"], mine["team"], mine["read_at"]) == ("document_approved", None, None)
        assert ann.get(PATH, params={"team": "it"}).status_code == 403
    with face.client("ann", f"{tenant}-other", "admin") as stranger:
        assert stranger.get(PATH).json()["items"] == []
        assert stranger.post(f"{PATH}/{mine['id']}/read").status_code == 404


async def test_each_reads_for_themselves(face: Running, speaker: Speaker, tenant: str) -> None:
    await speaker.say(*(request(tenant, title=f"no. {number}") for number in range(5)))
    with face.client("rob", tenant, "reviewer") as rob, face.client("eve", tenant, "viewer") as eve:
        newest, *_, oldest = wait_for(rob, 5)
        for _ in range(2):
            assert rob.post(f"{PATH}/{oldest['id']}/read").status_code == 204
        assert len(rob.get(PATH, params={"unread": True}).json()["items"]) == 4
        assert [item["id"] for item in rob.get(PATH, params={"unread": False}).json()["items"]] == [oldest["id"]]
        assert len(wait_for(eve, 5, unread=True)) == 5
        assert rob.post(f"{PATH}/read", json={"up_to": newest["id"]}).json() == {"read": 4}
        assert rob.post(f"{PATH}/read", json={"up_to": newest["id"]}).json() == {"read": 0}
        assert rob.get(PATH, params={"unread": True}).json()["items"] == []
        assert len(eve.get(PATH, params={"unread": True}).json()["items"]) == 5


async def test_pages_follow_each_other(face: Running, speaker: Speaker, tenant: str) -> None:
    await speaker.say(*(request(tenant, title=f"no. {number}") for number in range(7)))
    with face.client("rob", tenant, "admin") as rob:
        everything = [item["id"] for item in wait_for(rob, 7)]
        found, cursor = [], None
        while True:
            page = rob.get(PATH, params={"limit": 3} | ({} if cursor is None else {"cursor": cursor})).json()
            found += [item["id"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
    assert found == everything


@pytest.mark.parametrize(
    ("call", "status", "field"),
    [
        (lambda c: c.get(PATH, params={"limit": 0}), 422, "limit"),
        (lambda c: c.get(PATH, params={"unread": "perhaps"}), 422, "unread"),
        (lambda c: c.get(PATH, params={"cursor": "-1"}), 422, "cursor"),
        (lambda c: c.get(PATH, params={"cursor": str(2**63)}), 422, "cursor"),
        (lambda c: c.get(PATH, params={"team": "a\0b"}), 422, "team"),
        (lambda c: c.post(f"{PATH}/nonsense/read"), 404, "id"),
        (lambda c: c.post(f"{PATH}/{uuid.uuid4()}/read"), 404, "id"),
        (lambda c: c.post(f"{PATH}/read", json={"up_to": str(uuid.uuid4())}), 404, "up_to"),
        (lambda c: c.post(f"{PATH}/read", json={"up_to": "yesterday"}), 422, "up_to"),
        (lambda c: c.post(f"{PATH}/read", json={}), 422, "up_to"),
        (lambda c: c.post(f"{PATH}/read", json={"up_to": str(uuid.uuid4()), "all": True}), 422, "all"),
        (lambda c: c.get(f"{PATH}/stream", headers={"Last-Event-ID": "last"}), 422, "Last-Event-ID"),
        (lambda c: c.get(f"{PATH}/stream", params={"after": "x"}), 422, "after"),
        (lambda c: c.get(f"{PATH}/stream", params={"team": "a\0b"}), 422, "team"),
        (lambda c: c.get(f"{PATH}/deliveries", params={"state": "lost"}), 422, "state"),
        (lambda c: c.get(f"{PATH}/deliveries", params={"cursor": "x"}), 422, "cursor"),
        (lambda c: c.delete(f"{PATH}/subscriptions/{uuid.uuid4()}"), 404, "id"),
        (lambda c: c.delete(f"{PATH}/subscriptions/x"), 404, "id"),
    ],
)
def test_bad_input_is_named(
    face: Running, tenant: str, call: Callable[[httpx.Client], httpx.Response], status: int, field: str
) -> None:
    with face.client("ann", tenant, "admin") as client:
        answer = call(client)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["field"] == field


def test_only_an_admin_sees_other_peoples_addresses(face: Running, home: Home, tenant: str) -> None:
    """Nor in what the mail server said of them. A team's are the staff's."""
    said = "550 <ann.lee@EXAMPLE.com> unknown"
    for kind, owner, address in (("person", "ann", "Ann.Lee@example.com"), ("team", "it", "it@example.com")):
        home.change(
            "with told as (insert into notifications"
            " (id, tenant, seq, event_id, audience_kind, audience, kind, title, body, href)"
            " values (gen_random_uuid(), %s, %s, %s, %s, %s, 'document_failed', 't', '', '/') returning id, tenant)"
            " insert into deliveries (id, tenant, notification, owner_kind, owner, channel, address, state, error)"
            " select gen_random_uuid(), tenant, id, %s, %s, 'email', %s, 'failed', %s from told",
            *(tenant, len(owner), str(uuid.uuid4()), kind, owner, kind, owner, address, said),
        )

    def seen(name: str, role: str) -> set[tuple[str, str, str]]:
        with face.client(name, tenant, role) as client:
            items = client.get(f"{PATH}/deliveries").json()["items"]
        return {(item["sender"] or item["team"], item["receiver"], item["error"]) for item in items}

    team = ("it", "it@example.com", said)
    assert seen("ann", "sender") == {("ann", "Ann.Lee@example.com", said)}
    assert seen("ada", "admin") == {("ann", "Ann.Lee@example.com", said), team}
    for role in ("reviewer", "viewer", "agent"):
        assert seen("rob", role) == {("ann", "…@example.com", "550 <…@example.com> unknown"), team}
        assert seen("ann", role) == {("ann", "Ann.Lee@example.com", said), team}


def test_every_call_is_described(face: Running) -> None:
    described = httpx.get(f"{face.url}/openapi.json", trust_env=False).json()["paths"]
    stream = described[f"{PATH}/stream"]["get"]
    assert "text/event-stream" in stream["responses"]["200"]["content"]
    assert {parameter["name"] for parameter in stream["parameters"]} == {"after", "team", "Last-Event-ID"}
    for path, methods in described.items():
        for operation in methods.values():
            assert operation["summary"], path
            if path.startswith(PATH):
                assert {"401", "500", "503"} <= operation["responses"].keys(), path


@pytest.mark.parametrize("path", ["", "/stream", "/subscriptions", "/deliveries"])
def test_nobody_is_told_without_a_token(face: Running, path: str) -> None:
    assert httpx.get(face.url + PATH + path, trust_env=False).status_code == 401


def test_the_process_says_how_it_is(face: Running, tenant: str) -> None:
    with face.client("ann", tenant, "admin") as client:
        assert {part["consumer"] for part in client.get("/api/queues").json()["queues"]} == {
            "documents.events.notifications",
            "requests.events.notifications",
            "deliverer",
        }
        metrics = client.get("/metrics").text
    for name in ("documents.events.notifications", "requests.events.notifications"):
        assert f'workbot_slots_total{{consumer="{name}"}} 20.0' in metrics


async def test_what_is_old_goes_with_all_that_hangs_on_it(
    home: Home, face: Running, speaker: Speaker, tenant: str
) -> None:
    await speaker.say(request(tenant, title="old"), request(tenant, title="new"))
    with face.client("rob", tenant, "admin") as rob:
        old = next(item for item in wait_for(rob, 2) if str(item["title"]).endswith("old"))
        assert rob.post(f"{PATH}/{old['id']}/read").status_code == 204
    home.change("update notifications set created_at = now() - interval '91 days' where id = %s", old["id"])
    home.change("update timers set due_at = now() where name = 'notifications.drop_old'")
    deadline = time.monotonic() + 30
    while home.rows("select from notifications where id = %s", old["id"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert home.rows("select count(*) from reads where notification = %s", old["id"]) == [(0,)]
    assert home.rows("select count(*) from notifications where tenant = %s", tenant) == [(1,)]
