"""Who sees which documents, and how a list is walked."""

import uuid

import httpx
import pytest

from tests.documents.conftest import Face
from tests.fixtures.processes import Home

PATH = "/api/documents"


def submit(client: httpx.Client, text: str = "hello") -> str:
    answer = client.post(PATH, json={"text": text})
    assert answer.status_code == 202
    return str(answer.json()["id"])


def listed(client: httpx.Client, **query: str) -> list[str]:
    answer = client.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def test_a_sender_sees_their_own(face: Face, tenant: str) -> None:
    with face.client("ann", tenant) as ann, face.client("bob", tenant) as bob:
        anns, bobs = submit(ann), submit(bob)
        assert listed(ann) == listed(ann, sender="ann") == [anns]
        assert ann.get(f"{PATH}/{anns}").status_code == 200
        hidden, missing = ann.get(f"{PATH}/{bobs}"), ann.get(f"{PATH}/{uuid.uuid4()}")
        assert (hidden.status_code, missing.status_code) == (404, 404)
        assert hidden.json() == missing.json(), "the answer does not tell whether it exists"
        assert ann.get(PATH, params={"sender": "bob"}).status_code == 403


@pytest.mark.parametrize("role", ["reviewer", "viewer", "agent", "admin"])
def test_staff_sees_the_tenants(face: Face, tenant: str, role: str) -> None:
    with (
        face.client("ann", tenant) as ann,
        face.client("bob", tenant) as bob,
        face.client("sam", tenant, role) as sam,
    ):
        anns, bobs = submit(ann), submit(bob)
        assert listed(sam) == [bobs, anns]
        assert listed(sam, sender="ann") == [anns]
        assert listed(sam, sender="nobody") == []
        assert sam.get(f"{PATH}/{anns}").json()["sender"] == "ann"


def test_nobody_sees_another_tenants(face: Face, tenant: str) -> None:
    with face.client("ann", tenant) as ann, face.client("ann", f"not-{tenant}", "admin", "sender") as stranger:
        document_id = submit(ann)
        assert listed(stranger) == listed(stranger, sender="ann") == []
        assert stranger.get(f"{PATH}/{document_id}").status_code == 404


@pytest.mark.parametrize("path", ["x", "1", "..%2F..", "a" * 3000])
def test_an_impossible_id_is_an_unknown_one(sender: httpx.Client, path: str) -> None:
    answer = sender.get(f"{PATH}/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_an_id_with_a_control_character_is_named(sender: httpx.Client) -> None:
    answer = sender.get(f"{PATH}/%00")
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert [error["field"] for error in answer.json()["errors"]] == ["document_id"]


def test_a_list_is_walked_to_its_end_while_it_grows(sender: httpx.Client) -> None:
    ids = [submit(sender) for _ in range(7)]
    seen: list[str] = []
    query = {"limit": "3"}
    while True:
        page = sender.get(PATH, params=query).json()
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        submit(sender, "comes later and is not repeated or skipped")
        query["cursor"] = page["next"]
    assert seen == ids[::-1]


def test_a_list_by_status(sender: httpx.Client, home: Home) -> None:
    queued, failed = submit(sender), submit(sender)
    home.change("update documents set status = 'failed', error = 'The PDF is damaged.' where id = %s", failed)
    assert listed(sender, status="queued") == [queued]
    assert listed(sender, status="failed") == [failed]
    assert listed(sender, status="approved") == []
    assert sender.get(f"{PATH}/{failed}").json()["error"] == "The PDF is damaged."


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"status": "done"}, "status"),
        ({"cursor": "x"}, "cursor"),
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
    ],
)
def test_a_bad_query_names_its_parameter(sender: httpx.Client, query: dict[str, str], field: str) -> None:
    answer = sender.get(PATH, params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


def test_fields_are_shown_by_name_in_the_order_found(sender: httpx.Client, home: Home) -> None:
    document_id = submit(sender)
    home.change(
        """update documents set status = 'waiting_for_review', attempts = 2, fields =
        '[{"name": "total", "value": "1.00", "confidence": 0.5}, {"name": "a", "value": "", "confidence": 0}]'
        where id = %s""",
        document_id,
    )
    document = sender.get(f"{PATH}/{document_id}").json()
    assert list(document["fields"].items()) == [
        ("total", {"value": "1.00", "confidence": 0.5}),
        ("a", {"value": "", "confidence": 0.0}),
    ]
    assert (document["status"], document["attempts"]) == ("waiting_for_review", 2)
