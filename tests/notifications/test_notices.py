"""What an event says to people, and to whom."""

import dataclasses
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.errors import NotRetryable
from schemas.events import DocumentFailed, DocumentReceived, DocumentReviewed, RequestCreated
from services.notifications import notices
from services.notifications.handlers import HANDLERS
from services.notifications.notices import KINDS, MAX_BODY, MAX_TITLE, QUIET, Notice
from tests.notifications.conftest import read, request


def told(event: object) -> list[tuple[str, str, str]]:
    return [(notice.audience_kind, notice.audience, notice.kind) for notice in notices.notices(event)]


def reviewed(decision: str) -> DocumentReviewed:
    return DocumentReviewed(document_id="d-1", tenant="acme", sender="ann", decision=decision, reviewer="rob")


FAILED = DocumentFailed(
    document_id="d-1", tenant="acme", sender="ann", reason="malformed_pdf", error="It breaks off.", attempts=1
)


@pytest.mark.parametrize(
    ("event", "whom"),
    [
        (request("acme"), [("team", "it", "request_created")]),
        (
            read("acme", status="waiting_for_review"),
            [("team", "reviewers", "document_waits"), ("person", "ann", "document_waits")],
        ),
        (read("acme"), [("person", "ann", "document_approved")]),
        (reviewed("approved"), [("person", "ann", "document_approved")]),
        (reviewed("rejected"), [("person", "ann", "document_rejected")]),
        (FAILED, [("person", "ann", "document_failed")]),
    ],
)
def test_whom_an_event_concerns(event: object, whom: list[tuple[str, str, str]]) -> None:
    assert told(event) == whom


def test_a_notice_says_what_happened_and_where_to_look() -> None:
    (notice,) = notices.notices(FAILED)
    assert notice == Notice(
        "acme",
        "person",
        "ann",
        "document_failed",
        "Your document could not be read",
        "It breaks off.",
        "/api/documents/d-1",
    )
    (asked,) = notices.notices(request("acme", title="The\nprinter\tis jammed"))
    assert asked.title == "New request: The printer is jammed"
    assert asked.body == "Third floor."
    assert asked.href.startswith("/api/requests/")


@pytest.mark.parametrize("event", [read("acme", status="lost"), reviewed("maybe"), object()])
def test_what_there_are_no_words_for_is_set_aside(event: object) -> None:
    with pytest.raises(NotRetryable) as refused:
        notices.notices(event)
    assert refused.value.reason == "unknown_status"


@pytest.mark.parametrize("team", ["", "a\0b", "x" * 191, "é" * 96])
def test_a_team_that_nobody_could_be_found_by_is_set_aside(team: str) -> None:
    with pytest.raises(NotRetryable) as refused:
        notices.notices(dataclasses.replace(request("acme"), team=team))
    assert refused.value.reason == "unusable_team"


@pytest.mark.parametrize("wrong", ["", "a\0b", "a\nb", "x" * 201])
def test_names_that_cannot_be_are_set_aside(wrong: str) -> None:
    for event, subject in ((request("acme"), "request_id"), (read("acme"), "document_id"), (FAILED, "document_id")):
        for field, reason in (("tenant", "no_owner"), ("sender", "no_owner"), (subject, "unusable_id")):
            with pytest.raises(NotRetryable) as refused:
                notices.notices(dataclasses.replace(event, **{field: wrong}))
            assert refused.value.reason == reason, field
    with pytest.raises(NotRetryable):
        notices.notices(request("a:b"))


def test_every_event_of_a_topic_is_handled_or_left_alone() -> None:
    handled = {event for events in HANDLERS.values() for event in events}
    assert handled.isdisjoint(QUIET)
    assert DocumentReceived in QUIET


@given(st.text(), st.text())
def test_words_of_others_are_cut_and_cleaned(title: str, body: str) -> None:
    asked = RequestCreated(
        request_id="r-1", tenant="acme", sender="ann", team="it", title=title * 50, body=body * 500
    )
    (notice,) = notices.notices(asked)
    assert len(notice.title) <= MAX_TITLE
    assert len(notice.body) <= MAX_BODY
    assert notice.kind in KINDS["team"]
    assert not any(unicodedata.category(c) == "Cc" for c in notice.title)
    assert not any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in notice.body)
    notice.title.encode()
    notice.body.encode()
