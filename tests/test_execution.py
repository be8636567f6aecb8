"""docs/execution.md is held to the real routes, consumers and timers: every operation has its row, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from fastapi import FastAPI
from starlette.routing import Route

from schemas import topics
from services.analytics import parts as analytics
from services.analytics.settings import AnalyticsSettings
from services.documents import parts as documents
from services.documents import upkeep as documents_upkeep
from services.documents.settings import DocumentsSettings
from services.gateway import parts as gateway
from services.gateway import upkeep as gateway_upkeep
from services.gateway.settings import GatewaySettings
from services.notifications import parts as notifications
from services.notifications import upkeep as notifications_upkeep
from services.notifications.settings import NotificationsSettings
from web.tokens import Bearer

PAGE = Path(__file__).parent.parent / "docs" / "execution.md"
KINDS = {"request", "stream", "job", "workflow"}


def rows(section: str) -> dict[str, list[str]]:
    """The rows of a section's table by their operation. Fails on an operation that stands there twice."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    found: dict[str, list[str]] = {}
    for line in re.findall(r"^\| (`.+) \|$", text, re.MULTILINE):
        operation, *cells = [cell.strip() for cell in line.split("|")]
        assert operation not in found, f"{operation} stands there twice"
        found[operation.strip("`")] = cells
    return found


def faces() -> Iterator[FastAPI]:
    """Every HTTP face of the house, as its process builds it. The parts behind the routes are not needed."""
    nothing = cast(Any, MagicMock())
    bearer = Bearer("k" * 32)
    yield documents.make_api_face(nothing, nothing, bearer)
    yield documents.make_worker_face(nothing, nothing, nothing, nothing, bearer)
    yield analytics.make_api_face(nothing, nothing, nothing, nothing, nothing, topics.load(), bearer)
    yield notifications.make_api_face(nothing, nothing, nothing, nothing, nothing, [], bearer)
    yield gateway.make_api_face(nothing, nothing, bearer, nothing, nothing, nothing, nothing)
    yield gateway.make_worker_face(nothing, nothing, nothing, nothing, nothing)


def routes() -> set[str]:
    found = set()
    for face in faces():
        for route in face.routes:
            if isinstance(route, Route):
                found |= {f"{method} {route.path}" for method in (route.methods or {"ANY"}) - {"HEAD"}}
        for path, methods in face.openapi()["paths"].items():
            found |= {f"{method.upper()} {path}" for method in methods}
    return found


def consumers() -> set[str]:
    listed = topics.load()
    return {f"{topic}.{consumer}" for topic in listed for consumer in listed[topic].consumers}


def timers() -> set[str]:
    documents_settings = DocumentsSettings(database_url="unused", storage_dir=Path("unused"))
    settings = GatewaySettings(database_url="unused")
    counts = AnalyticsSettings(database_url="unused", tables_dir=Path("unused"))
    others = notifications_upkeep.timers(NotificationsSettings(database_url="unused"))
    own = {*documents_upkeep.timers(documents_settings, cast(Any, None)), *gateway_upkeep.timers(settings)}
    return {*own, *others, *analytics.timers(counts)}


@pytest.mark.parametrize(
    ("section", "real"),
    [("Requests", routes()), ("Jobs", consumers()), ("Timers", timers())],
    ids=["routes", "consumers", "timers"],
)
def test_every_operation_has_its_row(section: str, real: set[str]) -> None:
    assert set(rows(section)) == real


@pytest.mark.parametrize("section", ["Requests", "Jobs", "Timers"])
def test_every_row_says_kind_place_and_reason(section: str) -> None:
    for operation, (kind, place, reason) in rows(section).items():
        assert kind in KINDS, operation
        assert place, operation
        assert reason.endswith("."), operation


def test_consumers_and_timers_are_jobs() -> None:
    assert {cells[0] for section in ("Jobs", "Timers") for cells in rows(section).values()} == {"job"}
