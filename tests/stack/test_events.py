"""`workbot events replay`: what is refused, and that it looks again while it copies."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from messaging.errors import Misconfigured
from messaging.lag import PartitionLag
from messaging.policy import Policy
from messaging.redelivery import Stretch
from schemas import topics
from stack import events
from stack.cli import app
from stack.services import consuming
from stack.status import ChildStatus, Phase, Status
from tests.messaging.harness import subscription


@dataclass
class Copying:
    """Stands for a redelivery: the consumer runs from the given look on."""

    runs_from: int
    looks: int = 0
    told: list[tuple[int, int]] = field(default_factory=list)

    def running(self) -> bool:
        self.looks += 1
        return self.looks >= self.runs_from

    def run(self, _stretches: Any, _key: Any, _generation: int, progress: Any) -> int:
        for passed in range(1, 11):
            progress(passed, passed)
        return 10


def order(copying: Copying) -> events._Order:
    sub = subscription("things", Policy(per_key=1, total=2, ordered=True))
    return events._Order(sub, cast(Any, copying), 100, [Stretch(0, 0, 10)])


def test_a_consumer_that_comes_back_while_events_are_copied_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.0)
    with pytest.raises(Misconfigured, match=r"began to run meanwhile: 3 old events"):
        events._carry_out(order(Copying(runs_from=3)), None, guarded=True)
    unguarded = Copying(runs_from=1)
    events._carry_out(order(unguarded), None, guarded=False)
    assert unguarded.looks == 0


def test_it_is_looked_once_more_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_SECONDS", 1000.0)
    with pytest.raises(Misconfigured, match="10 old events"):
        events._carry_out(order(Copying(runs_from=1)), None, guarded=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--consumer nobody --from EARLIEST", "There is no consumer 'nobody'"),
        ("--consumer reader --from EARLIEST", "keeps no job that is done"),
        ("--consumer requests.events.analytics --from EARLIEST", "counts what it reads"),
        ("--consumer notifications --from yesterday", "neither EARLIEST nor a time"),
        ("--consumer notifications --from 2999-01-01", "still to come"),
        ("--consumer notifications --from EARLIEST --key nobody", "--key takes TENANT:SENDER, such as acme:nadia"),
        ("--consumer notifications --from EARLIEST --key acme:", "in 'acme:' the sender is empty"),
        ("--consumer notifications --from EARLIEST --key :nadia", "in ':nadia' the tenant is empty"),
        (f"--consumer notifications --from EARLIEST --key {'a' * 201}:b", "the tenant is longer than 200 bytes"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason_whether_or_not_a_stack_runs(
    options: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.control, "reach", lambda *_: pytest.fail("the stack was asked"))
    refused = CliRunner().invoke(app, ["events", "replay", *options.split()])
    assert refused.exit_code == 1
    assert said in refused.stderr


@pytest.mark.parametrize(
    ("service", "process"),
    [("notifications", "notifications-api"), ("documents", "documents-worker"), ("gateway", "gateway-worker")],
)
def test_the_process_that_runs_a_consumer_is_known(service: str, process: str) -> None:
    parts = ["documents-api", "documents-worker", "gateway-api", "gateway-worker", "notifications-api"]
    assert consuming(service, parts) == process


def test_a_consumer_that_runs_is_named_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    part = ChildStatus("notifications-api", Phase.READY, "", "", 0.0, 0, None, None, None)
    now = Status(1, 0.0, ready=True, stopping=False, memory_bytes=0, children=(part,))
    monkeypatch.setattr(events.control, "reach", lambda *_: SimpleNamespace(kafka="127.0.0.1:1"))
    monkeypatch.setattr(events.control, "status", lambda _: now)
    monkeypatch.setattr(events, "Redelivery", lambda *_: nullcontext(Copying(runs_from=1)))
    command = "events replay --consumer documents.events.notifications --from EARLIEST"
    refused = CliRunner().invoke(app, command.split())
    assert refused.exit_code == 1
    assert "Stop notifications-api first (`workbot stop notifications-api`)" in refused.stderr


@pytest.mark.parametrize("position", [None, 7])
def test_a_position_that_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch, position: int | None) -> None:
    class Standing:
        def __init__(self, *_: object) -> None: ...

        async def of(self, groups: Any) -> dict[str, list[PartitionLag]]:
            return {
                group: [PartitionLag(*place, position, 9, 2, None) for place in wanted]
                for group, wanted in groups.items()
            }

        async def close(self) -> None: ...

    monkeypatch.setattr(events.control, "reach", lambda *_: SimpleNamespace(kafka=""))
    monkeypatch.setattr(events, "Lag", Standing)
    shown = CliRunner().invoke(app, ["events", "positions", "--consumer", "documents.events.notifications"])
    assert shown.exit_code == 0, shown.output
    assert ("A position of -: the consumer has not finished a record there yet" in shown.stdout) is (position is None)
    rows = [line.split() for line in shown.stdout.splitlines() if "documents.events" in line]
    assert len(rows) == 2 * topics.load()["documents.events"].partitions
    # What goes to a pipe or a file has room for whole names, too.
    assert {(row[0], row[1].removesuffix(".notifications.retry")) for row in rows} == {
        ("notifications", "documents.events")
    }
    assert all(row[-5:] == [row[-5], "-" if position is None else "7", "9", "2", "-"] for row in rows)
