"""`workbot events replay`: what is refused, and that it looks again while it copies."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from messaging.errors import Misconfigured
from messaging.policy import Policy
from messaging.redelivery import Stretch
from stack import events
from stack.cli import app
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
        ("--consumer notifications --from EARLIEST --key nobody", "not <tenant>:<sender>"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(options: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events.control, "endpoints", lambda _data_dir: None)
    refused = CliRunner().invoke(app, ["events", "replay", *options.split()])
    assert refused.exit_code == 1
    assert said in refused.stderr
