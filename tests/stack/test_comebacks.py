"""A whole stack without some of its servers: every process of every service that is killed then comes back, does what
it can without them, waits for the rest, and all of it arrives in the end."""

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stack import control, ports
from stack.layout import Layout
from stack.status import ChildStatus, Phase
from tests.stack.processes import Whole, running_whole, wait

TEXT = "Supplier: Acme Ltd\nInvoice number: 7\nDate: 2026-05-04\nTotal: 12.50 EUR\nCurrency: EUR"
NEEDS_KAFKA = {"documents-worker", "gateway-worker", "notifications-api", "analytics-api"}
PATIENCE_SECONDS = 90.0
FAULTS = re.compile(r"Traceback|process\.(failed|fault|misconfigured)|Assertion")


class Killable(Whole):
    """A running stack whose services are killed."""

    def child(self, name: str) -> ChildStatus:
        return control.status(self.data_dir).child(name)

    def kill_services(self) -> dict[str, str]:
        """As kill -9 does, all at once; returns what each said before, once each is up again (ready or not)."""
        before = {name: self.child(name) for name in ports.SERVICES}
        said = {name: self.said(name) for name in before}
        for child in before.values():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        for name, child in before.items():
            wait(lambda n=name, c=child: self.child(n).pid not in (None, c.pid), PATIENCE_SECONDS)  # type: ignore[misc]
            wait(lambda n=name: alive(self.child(n).address), PATIENCE_SECONDS)  # type: ignore[misc]
        return said

    def said(self, name: str) -> str:
        return Layout(self.data_dir).log(name).read_text("utf-8", errors="replace")


def alive(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def events(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def whole() -> Iterator[Killable]:
    with running_whole() as data_dir:
        yield Killable(data_dir)


@pytest.mark.parametrize(
    "away",
    [
        pytest.param(("kafka",), marks=pytest.mark.long),
        pytest.param(("registry",), marks=pytest.mark.long),
        ("kafka", "registry"),
    ],
    ids="+".join,
)
def test_killed_services_come_back_without(whole: Killable, away: tuple[str, ...]) -> None:
    tenant = f"without-{'-'.join(away)}"
    control.wait_until_ready(whole.data_dir)
    for name in away:
        control.halt(name, whole.data_dir)
    before = whole.kill_services()
    for name in {"gateway-api", "documents-api"} | (set() if "kafka" in away else NEEDS_KAFKA):
        wait(lambda n=name: whole.child(n).phase is Phase.READY, PATIENCE_SECONDS)  # type: ignore[misc]
    starts = {name: whole.child(name).restarts for name in ports.SERVICES}

    with whole.client(tenant, "ann", "sender") as ann, whole.client(tenant, "eve", "admin") as eve:
        filed = ann.post("/api/requests", json={"title": "A chair", "team": "it"})
        assert filed.status_code == 201, filed.text
        handed_in = ann.post("/api/documents", json={"text": TEXT})
        assert handed_in.status_code == 202, handed_in.text
        for path, count in (("/api/requests", 1), ("/api/documents", 1), ("/api/notifications", 0)):
            listed = ann.get(path)
            assert listed.status_code == 200, listed.text
            assert len(listed.json()["items"]) == count
        with ann.stream("GET", "/api/notifications/stream") as stream:
            assert stream.status_code == 200
            assert next(stream.iter_lines()).startswith(":")
        assert eve.get("/api/admin/dead-letters").status_code == 200
        # Asks the group's coordinator, which is what a client gives up on.
        assert eve.get("/api/admin/consumers").status_code == (503 if "kafka" in away else 200)
        if "kafka" in away:
            for name in NEEDS_KAFKA:
                wait(lambda n=name: waits_for_kafka(whole.said(n)[len(before[n]) :]), PATIENCE_SECONDS)  # type: ignore[misc]

        for name in away:
            control.restart(name, {}, whole.data_dir)
        control.wait_until_ready(whole.data_dir)

        def told() -> bool:
            team = eve.get("/api/notifications").json()["items"]
            counted = eve.get("/api/analytics/events").json()
            return any("A chair" in one["title"] for one in team) and counted.get("total") == 3

        wait(told, PATIENCE_SECONDS)
        wait(lambda: ann.get("/api/documents").json()["items"][0]["status"] == "approved", PATIENCE_SECONDS)
    assert {name: whole.child(name).restarts for name in ports.SERVICES} == starts
    for name, earlier in before.items():
        said = whole.said(name)[len(earlier) :]
        assert not FAULTS.search(said), f"{name}: {said}"
        kept = [line["event"] for line in events(said)].count("codec.uses_kept_ids")
        assert kept == int("registry" in away and name not in ("gateway-worker", "analytics-api")), name


def waits_for_kafka(said: str) -> bool:
    return any(line["event"] == "start.waits" and line["resource"] == "kafka" for line in events(said))
