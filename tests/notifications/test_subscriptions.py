"""Who may be told outside of the house, and where."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.gateway import asks
from services.notifications import subscribing
from tests.fixtures.processes import Running
from tests.notifications.conftest import Start
from web.problems import Problem
from web.tokens import Identity

PATH = "/api/notifications/subscriptions"
HOOK = {"channel": "webhook", "address": "https://example.com/hook"}


def test_a_subscription_comes_and_goes(face: Running, tenant: str) -> None:
    with face.client("ann", tenant, "sender") as ann:
        made = ann.post(PATH, json=HOOK)
        assert made.status_code == 201, made.text
        fresh = made.json()
        assert fresh["secret"].startswith("whsec_")
        assert fresh["kinds"] == ["document_approved", "document_rejected", "document_failed"]
        assert ann.post(PATH, json=HOOK).status_code == 409
        (listed,) = ann.get(PATH).json()["items"]
        assert listed == {name: value for name, value in fresh.items() if name != "secret"}
        with face.client("bob", tenant, "admin") as bob:
            assert bob.get(PATH).json()["items"] == []
            assert bob.delete(f"{PATH}/{fresh['id']}").status_code == 404
        assert ann.delete(f"{PATH}/{fresh['id']}").status_code == 204
        assert ann.delete(f"{PATH}/{fresh['id']}").status_code == 404
        assert ann.get(PATH).json()["items"] == []


def test_a_teams_are_the_admins_business(face: Running, tenant: str) -> None:
    wanted = {**HOOK, "team": "it", "kinds": ["request_created"]}
    for role in ("sender", "reviewer", "viewer", "agent"):
        with face.client("eve", tenant, role) as eve:
            assert eve.post(PATH, json=wanted).status_code == 403
            assert eve.get(PATH, params={"team": "it"}).status_code == 403
    with face.client("ada", tenant, "admin") as ada, face.client("bea", tenant, "admin") as bea:
        made = ada.post(PATH, json=wanted).json()
        assert (made["team"], made["kinds"], made["created_by"]) == ("it", ["request_created"], "ada")
        assert [item["id"] for item in bea.get(PATH, params={"team": "it"}).json()["items"]] == [made["id"]]
        with face.client("cleo", f"{tenant}-other", "admin") as cleo:
            assert cleo.delete(f"{PATH}/{made['id']}").status_code == 404
        assert bea.delete(f"{PATH}/{made['id']}").status_code == 204


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"channel": "pigeon", "address": "roof"}, 422, "channel"),
        ({"channel": "webhook"}, 422, "address"),
        ({"channel": "webhook", "address": ""}, 422, "address"),
        ({"channel": "webhook", "address": "https://" + "x" * 3000}, 422, "address"),
        ({"channel": "webhook", "address": "ftp://example.com"}, 422, "address"),
        ({"channel": "webhook", "address": "http://127.0.0.1/"}, 422, "address"),
        ({"channel": "webhook", "address": "http://intranet/"}, 422, "address"),
        ({"channel": "webhook", "address": "https://user:pw@example.com/"}, 422, "address"),
        ({"channel": "email", "address": "ann@example.com"}, 409, "channel"),
        ({**HOOK, "kinds": []}, 422, "kinds"),
        ({**HOOK, "kinds": ["request_created"]}, 422, "kinds"),
        ({**HOOK, "kinds": ["nonsense"]}, 422, "kinds"),
        ({**HOOK, "kinds": "document_failed"}, 422, "kinds"),
        ({**HOOK, "team": " "}, 422, "team"),
        ({**HOOK, "team": "a\u0000b"}, 422, "team"),
        ({**HOOK, "team": "é" * 150}, 422, "team"),
        ({**HOOK, "team": ":a"}, 422, "team"),
        ({**HOOK, "team": "x" * 101}, 422, "team"),
        ({**HOOK, "secret": "mine"}, 422, "secret"),
    ],
)
def test_bad_input_is_named(face: Running, tenant: str, body: dict[str, object], status: int, field: str) -> None:
    with face.client("ada", tenant, "admin") as client:
        answer = client.post(PATH, json=body)
        assert client.get(PATH).json()["items"] == []
    assert answer.status_code == status, answer.text
    assert answer.json()["errors"][0]["field"] == field
    if status == 409:
        assert "WORKBOT_SMTP_HOST" in answer.json()["detail"]


@pytest.mark.parametrize(
    "team",
    [
        "it",
        " it ",
        "a b",
        "",
        " ",
        ":a",
        "a:b",
        "a\nb",
        "a\u2028b",
        "x" * 100,
        "x" * 101,
        "é" * 95,
        "é" * 96,
        "🦊",
        "\ud800",
    ],
)
def test_a_team_is_named_as_requests_name_it(team: str) -> None:
    """A subscription for a team that no request can name would never fire."""

    def taken(name: Callable[[], str | None]) -> str | None:
        try:
            return name()
        except Problem as refused:
            at_fault.append([field for field, _ in refused.faults])
            return None

    at_fault: list[list[str]] = []
    ada = Identity("acme", "ada", frozenset({"admin"}), "s", 2**31)
    subscribed = taken(lambda: subscribing.owner(ada, team).name)
    assert subscribed == taken(lambda: asks.parse("t", "b", team).team)
    assert subscribed in (None, team.strip())
    assert at_fault == ([] if subscribed else [["team"], ["team"]])


def test_all_that_is_wrong_is_told_at_once(face: Running, tenant: str) -> None:
    wrong = {"channel": "webhook", "address": "http://127.0.0.1/", "team": " ", "kinds": ["nonsense"]}
    with face.client("ada", tenant, "admin") as client:
        answer = client.post(PATH, json=wrong)
    assert answer.status_code == 422, answer.text
    told = {error["field"]: error["detail"] for error in answer.json()["errors"]}
    assert list(told) == ["team", "address", "kinds"]
    assert "For a team" in told["kinds"]


def test_a_private_address_names_the_setting_that_would_allow_it(face: Running, start: Start, tenant: str) -> None:
    private = {"channel": "webhook", "address": "http://127.0.0.1:9999/"}
    with face.client("ann", tenant, "sender") as ann:
        assert "WORKBOT_WEBHOOK_ALLOW" in ann.post(PATH, json=private).json()["detail"]
        elsewhere = ann.post(PATH, json={"channel": "webhook", "address": "ftp://example.com/"}).json()["detail"]
        assert "WORKBOT_" not in elsewhere
    with start(webhook_allow="127.0.0.1:9999") as allowing, allowing.client("ann", tenant, "sender") as ann:
        assert ann.post(PATH, json=private).status_code == 201


def test_the_limit_holds_however_many_ask_at_once(face: Running, tenant: str) -> None:
    with face.client("ann", tenant, "sender") as ann, ThreadPoolExecutor(10) as threads:
        answers = list(
            threads.map(lambda n: ann.post(PATH, json={**HOOK, "address": f"https://example.com/{n}"}), range(30))
        )
        assert sorted(answer.status_code for answer in answers) == [201] * 20 + [409] * 10
        assert len(ann.get(PATH).json()["items"]) == 20
