"""The command without a stack: help, mistakes, tokens."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from messaging.settings import read_secret
from stack import keys
from stack.cli import app
from stack.layout import Layout
from web.tokens import verify

RUNNER = CliRunner()
COMMANDS = ["up", "down", "status", "logs", "token", "migrate", "schemas register", "topics create"]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_explains_itself(command: str) -> None:
    shown = RUNNER.invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage: workbot" in shown.stdout


@pytest.mark.parametrize("command", ["status", "migrate", "schemas register", "topics create"])
def test_what_needs_a_running_stack_says_so(tmp_path: Path, command: str) -> None:
    refused = RUNNER.invoke(app, ["--data-dir", str(tmp_path / "none"), *command.split()])
    assert refused.exit_code == 1
    assert "No stack is running" in refused.stderr
    assert "workbot up" in refused.stderr


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
    assert "workbot up" in refused.stderr


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
