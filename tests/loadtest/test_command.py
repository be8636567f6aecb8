"""What the command prints and how it ends, with a stand-in for the run itself."""

import asyncio
import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from loadtest import __main__ as command
from loadtest import figures, promises, run
from loadtest.records import Evidence, Sent
from loadtest.scenario import Scenario
from messaging.errors import Outage


class StandIn:
    """Takes the place of a load test: `perform` ends as `outcome` says."""

    outcome: Any = None

    def __init__(self, scenario: Scenario, stage: object, screen: Console, api: str | None) -> None:
        self.scenario = scenario
        sent = [Sent(n, "ana", "r", "s", False, f"d{n}", 0.0, 1.0) for n in range(5)]
        self.left = run.Left("load-1", sent, ended=3)

    async def perform(self, out: Path) -> run.Result:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        nothing = Evidence([], [], [], [], [], [], [])
        found = figures.compute(self.scenario, nothing, run="r1", tenant="load-r1")
        kept = [promises.Promise("lost", "0", 0, True), promises.Promise("slots_busy", ">= 0.95", 0.5, self.outcome)]
        return run.Result(found, kept, out / "report.json", out / "report.html")


def invoke(monkeypatch: pytest.MonkeyPatch, outcome: object, *options: str) -> Result:
    monkeypatch.setattr(StandIn, "outcome", outcome)
    monkeypatch.setattr(run, "LoadTest", StandIn)
    monkeypatch.setattr(command, "Stage", lambda data_dir: SimpleNamespace())
    return CliRunner().invoke(command.app, list(options))


@pytest.mark.parametrize(
    ("held", "options", "code"),
    [
        (True, (), 0),
        (False, (), 1),
        (False, ("--no-check",), 0),
        (False, ("--counts", "6,2"), 0),
        (False, ("--counts", "6,2", "--check"), 1),
        (True, ("--counts", "6,2", "--check"), 0),
        (False, ("--no-lending",), 1),
        (False, ("--seed", "7"), 1),
    ],
)
def test_a_missed_promise_fails_the_standard_run_and_others_on_demand(
    monkeypatch: pytest.MonkeyPatch, held: bool, options: tuple[str, ...], code: int
) -> None:
    assert invoke(monkeypatch, held, *options).exit_code == code


def test_missed_promises_are_named_and_the_report_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = invoke(monkeypatch, False, "--out", "somewhere")
    assert "Not kept: slots_busy is 0.5, promised >= 0.95" in ended.stdout
    assert "Not kept: lost" not in ended.stdout
    assert "Report: somewhere/runs/r1.html" in ended.stdout
    assert "Figures: somewhere/runs/r1.json" in ended.stdout
    assert "somewhere/report.html" in ended.stdout
    assert "Who finished when" in ended.stdout


@pytest.mark.parametrize("held", [True, False])
def test_it_says_how_busy_the_machine_was_and_what_a_missed_time_may_mean(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    said = invoke(monkeypatch, held).stdout
    assert re.search(r"\d+ CPUs, load average \d+\.\d before the run, \d+\.\d after it\.", said)
    assert ("repeat: `workbot load`" in said) is not held


def test_a_number_that_was_not_met_is_not_blamed_on_the_machine() -> None:
    assert not promises.Promise("lost", "0", 1, held=False).of_time
    assert promises.Promise("api_ms.p99", "<= 25", 26.0, held=False).of_time


def test_a_run_too_short_for_promises_of_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Times are promised from 100 documents on"
    assert said in invoke(monkeypatch, True, "--counts", "6,2").stdout
    assert said not in invoke(monkeypatch, True).stdout


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--help"], "python -m loadtest"),
        (["--called-as=workbot load", "--help"], "workbot load"),
        (["--called-as=workbot demo", "--data-dir", "x", "--help"], "workbot demo"),
    ],
)
def test_the_help_names_the_command_that_was_called(
    capsys: pytest.CaptureFixture[str], arguments: list[str], name: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 0
    assert f"Usage: {name} [OPTIONS]" in capsys.readouterr().out


def test_the_help_of_the_demo_says_that_it_starts_a_stack_and_leaves_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for name in ("workbot load", command.DEMO):
        with pytest.raises(SystemExit):
            command.main([f"--called-as={name}", "--help"])
        shown[name] = " ".join(capsys.readouterr().out.split())
    assert "Start the stack if it does not run" in shown[command.DEMO]
    assert "The stack is left running; `workbot down` stops it." in shown[command.DEMO]
    assert "--data-dir <path>" not in shown[command.DEMO]
    assert "--data-dir <path>" in shown["workbot load"]
    assert "--counts <str>" in shown[command.DEMO]
    assert "Start the stack" not in shown["workbot load"]


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_broken_off_it_says_what_is_left(monkeypatch: pytest.MonkeyPatch, signal: BaseException) -> None:
    ended = invoke(monkeypatch, signal)
    assert ended.exit_code == 130
    words = " ".join(ended.stderr.split())
    assert "5 documents were accepted as tenant load-1, 3 had ended" in words
    assert "The other 2 are read" in words


@pytest.mark.parametrize("fault", [run.NotReading("It does not read."), Outage("It does not read.", "kafka")])
def test_what_stops_a_run_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    ended = invoke(monkeypatch, fault)
    assert ended.exit_code == 2
    remedy = " `workbot status` shows how kafka is, `workbot start kafka` starts it."
    assert ended.stderr.strip() == "It does not read." + (remedy if isinstance(fault, Outage) else "")


def test_it_ends_without_a_word_when_nobody_reads_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = invoke(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert (ended.exit_code, ended.output) == (1, "")
