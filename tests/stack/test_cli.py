"""The command without a stack: help, mistakes, tokens."""

import io
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from messaging.settings import given_environment, inherited_environment, read_secret
from schemas import asyncapi
from stack import control, given, keys, launch, screen, state, terminal
from stack.cli import app
from stack.endpoints import Endpoints
from stack.layout import Layout
from stack.status import ChildStatus, Phase, Status, complaints
from web.tokens import verify

RUNNER = CliRunner()
COMMANDS = [
    *("up", "down", "status", "stop", "start", "logs", "token", "migrate", "erase"),
    *("schemas register", "schemas asyncapi", "topics create", "events positions", "events replay"),
]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_explains_itself(command: str) -> None:
    shown = RUNNER.invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage: workbot" in shown.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("status", "migrate", "schemas register", "topics create", "stop documents-api", "start documents-api"),
        *("events positions", "events replay --consumer notifications --from EARLIEST"),
    ],
)
def test_what_needs_a_running_stack_says_so(tmp_path: Path, command: str) -> None:
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path / "none"), *command.split()])
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"No stack is running on {tmp_path / 'none'}. `workbot --data-dir {tmp_path / 'none'} up` starts one.\n"
    )


@pytest.mark.parametrize(("answer", "stopped"), [("n\n", False), ("y\n", True)])
def test_deleting_asks_before_anything_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, stopped: bool
) -> None:
    stops: list[Path] = []
    monkeypatch.setattr(control, "stop", lambda data_dir: stops.append(data_dir) or True)
    stack = tmp_path / "stack"
    Layout(stack).create()
    ended = RUNNER.invoke(app, ["--data-dir", str(stack), "down", "--delete-data"], input=answer)
    assert ended.exit_code == (0 if stopped else 1)
    assert stops == ([stack] if stopped else [])
    assert stack.exists() is not stopped


def child(name: str, phase: Phase, message: str = "") -> ChildStatus:
    return ChildStatus(name, phase, "", message, 0.0, 0, None, None, None)


def now(*children: ChildStatus) -> Status:
    return Status(1, 0.0, all(one.ready for one in children), False, 0, children)


def test_a_stack_that_runs_already_says_what_is_ill_and_that_it_keeps_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    layout.create()
    state.write(layout.state, state.State({"kafka": 1}, given=given.marks(layout, {"WORKBOT_MODEL_URL": "a"})))
    running = now(child("kafka", Phase.READY), child("documents-worker", Phase.DIED, "ended with 1"))
    monkeypatch.setattr(control, "is_running", lambda data_dir: True)
    monkeypatch.setattr(control, "status", lambda data_dir: running)
    monkeypatch.setattr(control, "endpoints", lambda data_dir: _not_running())
    for name in given_environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("WORKBOT_MODEL_URL", "b")
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "up", "--detach"])
    assert refused.exit_code == 1
    assert "documents-worker is not ready (died: ended with 1)" in refused.stderr
    assert f"`workbot --data-dir {tmp_path} logs documents-worker`" in refused.stderr
    assert "Not as it was started: WORKBOT_MODEL_URL" in refused.stderr
    assert f"`workbot --data-dir {tmp_path} down` first" in refused.stderr
    monkeypatch.setenv("WORKBOT_MODEL_URL", "a")
    assert "It keeps the settings" in RUNNER.invoke(app, ["--data-dir", str(tmp_path), "up", "-d"]).stderr


def test_a_stack_of_another_version_that_runs_already_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(data_dir: Path) -> Status:
        raise control.ControlFailed(f"The stack on {data_dir} was started by another version.")

    monkeypatch.setattr(control, "is_running", lambda data_dir: True)
    monkeypatch.setattr(control, "status", status)
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "up", "--detach"])
    assert refused.exit_code == 1
    assert isinstance(refused.exception, SystemExit)
    assert "was started by another version" in refused.stderr


def _not_running() -> Endpoints:
    raise control.NotRunning("it has just ended")


def test_a_start_waits_for_the_rest_before_it_tells_of_a_refusal() -> None:
    refusing = child("documents-worker", Phase.REFUSED, "ended with 78: model_url is wrong")
    launch.give_up_if_refused(now(child("documents-api", Phase.READY)))
    launch.give_up_if_refused(now(refusing, child("documents-api", Phase.STARTING)))
    with pytest.raises(launch.NotUp, match=r"documents-worker ended with 78: model_url is wrong\n.*the rest runs"):
        launch.give_up_if_refused(now(refusing, child("documents-api", Phase.READY)))


REASON = "ended with 78: Settings are missing or wrong: WORKBOT_LEDGER_RETENTION_DAYS must be more"
SERVICES = [child(name, Phase.REFUSED, REASON) for name in ("documents-api", "documents-worker", "gateway-api")]


def test_one_reason_of_many_parts_is_told_once() -> None:
    everything = now(*SERVICES, child("analytics-api", Phase.REFUSED, "ended with 78: another"))
    with pytest.raises(launch.NotUp) as told:
        launch.give_up_if_refused(everything)
    assert str(told.value).splitlines() == [
        f"documents-api, documents-worker, gateway-api {REASON}",
        "analytics-api ended with 78: another",
        "Until then the rest runs without it.",
    ]
    assert complaints(everything.ill) == [
        "documents-api, documents-worker, gateway-api are not ready "
        f"(refused: {REASON}); see `workbot logs documents-api`.",
        "analytics-api is not ready (refused: ended with 78: another); see `workbot logs analytics-api`.",
    ]


@pytest.mark.parametrize("refusals", [True, False])
def test_lines_of_a_start_tell_a_reason_once_or_leave_it_to_the_end(refusals: bool) -> None:
    said = io.StringIO()
    with screen.View(Console(file=said, width=200), refusals=refusals) as view:
        for _ in range(2):
            view.show(now(*SERVICES))
    reason = f": {REASON}" if refusals else ""
    other = ", as documents-api is" if refusals else ""
    assert said.getvalue().splitlines() == [
        f"documents-api: refused{reason}",
        f"documents-worker: refused{other}",
        f"gateway-api: refused{other}",
    ]


def test_the_supervisor_runs_also_when_a_part_was_stopped_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = child("kafka", Phase.STOPPED, f"by hand; `workbot --data-dir {tmp_path} start kafka` starts it")
    monkeypatch.setattr(control, "status", lambda data_dir: now(stopped))
    monkeypatch.setattr(control, "endpoints", lambda data_dir: SimpleNamespace(ports={}))
    shown = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "status"])
    assert shown.exit_code == 1
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["kafka", "stopped", "by", "hand"] in [row[:4] for row in rows]
    assert ["supervisor", "running"] in [row[:2] for row in rows]
    assert shown.stderr == f"kafka is not ready ({stopped.state}).\n"


def test_settings_nothing_knows_are_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in given_environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("WORKBOT_SMTP_HSOT", "mail")
    monkeypatch.setenv("WORKBOT_SMTP_PORT", "25")
    monkeypatch.setattr(launch, "detached", lambda *_: None)
    monkeypatch.setattr(launch, "foreground", lambda *_: None)
    monkeypatch.setattr(control, "status", lambda data_dir: now())
    monkeypatch.setattr(control, "endpoints", lambda data_dir: _not_running())
    said = "WORKBOT_SMTP_HSOT is set, and no part of the stack has such a setting. Is WORKBOT_SMTP_HOST meant?"
    for options in (["up"], ["up", "--detach"]):
        started = RUNNER.invoke(app, ["--data-dir", str(tmp_path), *options])
        assert started.stderr.splitlines()[0] == said
        assert "SMTP_PORT" not in started.stderr


def test_settings_that_the_stack_makes_itself_are_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in given_environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("WORKBOT_PUBLIC_URL", "https://work.example.com")
    monkeypatch.setenv("WORKBOT_PORT", "8080")
    monkeypatch.setenv("WORKBOT_TEST_STACK", str(tmp_path))
    monkeypatch.setattr(launch, "foreground", lambda *_: None)
    started = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "up"])
    assert started.stderr.splitlines() == [
        "WORKBOT_PORT is set, and not used: the stack sets it for its services itself. "
        "The ports are fixed with --port NAME=N.",
        "WORKBOT_PUBLIC_URL is set, and not used: the stack sets it for its services itself.",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [("notifications-api", True), ("documents-worker", True), ("documents-api", False), ("kafka", False)],
)
def test_starting_a_part_names_at_once_what_it_must_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: bool
) -> None:
    parts = ["documents-api", "documents-worker", "notifications-api"]
    stopped = child("kafka", Phase.STOPPED, "by hand; `workbot start kafka` starts it")
    running = now(stopped, *(child(part, Phase.READY) for part in parts))
    said: list[str] = []

    def restart(name: str, data_dir: Path) -> None:
        said.append("restarted")

    monkeypatch.setattr(control, "status", lambda data_dir: running)
    monkeypatch.setattr(control, "restart", restart)
    monkeypatch.setattr(terminal, "say", said.append)
    assert RUNNER.invoke(app, ["--data-dir", str(tmp_path), "start", name]).exit_code == 0
    first = (
        "kafka is not ready (stopped: by hand; `workbot start kafka` starts it). "
        f"{name} is started and waits for that."
    )
    assert said == ([first] if told else []) + ["restarted"]


def test_the_demo_is_told_of_another_folder_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "is_running", lambda data_dir: pytest.fail("it began"))
    for option in (["--data-dir", str(tmp_path)], [f"--data-dir={tmp_path}"]):
        refused = RUNNER.invoke(app, ["demo", *option])
        assert refused.exit_code == 2
        assert "before the command" in " ".join(refused.stderr.split())


def test_a_contract_that_is_up_to_date_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    said = RUNNER.invoke(app, ["schemas", "asyncapi", "--check"])
    assert (said.exit_code, said.stdout) == (0, "docs/asyncapi.yaml is up to date.\n")
    monkeypatch.setattr(asyncapi, "is_current", lambda: False)
    refused = RUNNER.invoke(app, ["schemas", "asyncapi", "--check"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "is out of date; `workbot schemas asyncapi` makes it anew." in refused.stderr


def test_waiting_for_a_stack_ends_at_once_when_a_part_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = child("documents-worker", Phase.REFUSED, "ended with 78: model_url is wrong")
    monkeypatch.setattr(control, "status", lambda data_dir: now(refusing))
    with pytest.raises(control.ControlFailed, match="workbot logs documents-worker"):
        control.wait_until_ready(Path())


def test_a_token_speaks_for_who_was_named(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    keys.ensure(layout)
    who = ["--sub", "ada", "--tenant", "acme", "--role", "reviewer", "--role", "viewer"]
    printed = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "token", *who])
    assert printed.exit_code == 0
    secret = read_secret(keys.path(layout, keys.TOKEN_KEY), "tokens")
    identity = verify(secret, printed.stdout.strip())
    assert (identity.sub, identity.tenant, identity.roles) == ("ada", "acme", frozenset({"reviewer", "viewer"}))


def test_a_token_for_an_unknown_role_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    keys.ensure(layout)
    who = ["--sub", "ada", "--tenant", "acme", "--role", "king"]
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "token", *who])
    assert refused.exit_code == 2
    assert "unknown role king" in refused.stderr


def test_a_token_before_the_first_start_says_what_to_do(tmp_path: Path) -> None:
    who = ["--sub", "ada", "--tenant", "acme", "--role", "sender"]
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path), "token", *who])
    assert refused.exit_code == 1
    assert refused.stderr == f"No stack has run on {tmp_path} yet. `workbot --data-dir {tmp_path} up` starts one.\n"


@pytest.mark.parametrize("text", ["kafka", "kafka=0", "kafka=many", "zookeeper=2181"])
def test_a_port_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path / "none"), "up", "--port", text])
    assert refused.exit_code in (1, 2)
    assert text.partition("=")[0] in refused.stderr


def test_secrets_are_made_once(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    keys.ensure(layout)
    first = {name: keys.path(layout, name).read_text("ascii") for name in keys.NAMES}
    keys.ensure(layout)
    assert {name: keys.path(layout, name).read_text("ascii") for name in keys.NAMES} == first
    assert len(set(first.values())) == len(keys.NAMES)


def test_ctrl_c_while_the_command_is_being_loaded_ends_it_without_a_word(tmp_path: Path) -> None:
    """Held open in the middle: what it imports says so, and takes as long as it takes the signal to come."""
    (tmp_path / "typer.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n", "ascii")
    command = [str(Path(sys.executable).with_name("workbot")), "--data-dir", str(tmp_path / "none"), "status"]
    environment = {**inherited_environment(), "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as begun:
        assert begun.stdout is not None
        assert begun.stdout.readline() == "loading\n"
        begun.send_signal(signal.SIGINT)
        said = begun.communicate(timeout=30)
    assert (begun.returncode, said) == (-signal.SIGINT, ("", ""))
