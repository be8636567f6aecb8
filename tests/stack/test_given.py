"""Telling whether a running stack has the settings of this call."""

from dataclasses import fields
from pathlib import Path

import pytest

from messaging.settings import variables
from stack import given, services, state, terminal
from stack.endpoints import Database, Endpoints
from stack.keys import SERVICES
from stack.layout import Layout


def test_it_names_what_differs_and_keeps_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    layout.create()
    before = {"WORKBOT_A": "kept", "WORKBOT_B": "old-value", "WORKBOT_C": "gone", "WORKBOT_DATA_DIR": "/a"}
    state.write(layout.state, state.State({"kafka": 1}, given=given.marks(layout, before)))
    assert given.changed(layout, before) == []
    now = {"WORKBOT_A": "kept", "WORKBOT_B": "new", "WORKBOT_D": "added", "WORKBOT_DATA_DIR": "/b"}
    assert given.changed(layout, now) == ["WORKBOT_B", "WORKBOT_C", "WORKBOT_D"]
    assert "old-value" not in layout.state.read_text("utf-8")
    # Of what the stack was started with, this shell need not know.
    monkeypatch.setattr(terminal, "given_environment", lambda: now)
    said = terminal.settings_not_heard(tmp_path)
    assert said is not None
    assert said.startswith("Not as it was started: WORKBOT_B, WORKBOT_D. ")
    monkeypatch.setattr(terminal, "given_environment", lambda: before)
    assert terminal.settings_not_heard(tmp_path) is None


def test_variables_that_nothing_reads_are_named_with_what_may_be_meant() -> None:
    known = {variable: "" for kind in given.KINDS for variable in variables(kind).values()}
    assert {"WORKBOT_DATA_DIR", "WORKBOT_SMTP_HOST", "WORKBOT_READER_TOTAL", "WORKBOT_TABLES_DIR"} <= known.keys()
    assert given.unknown(known) == {}
    misspelt = {"WORKBOT_SMTP_HSOT": "", "WORKBOT_READERTOTAL": "", "WORKBOT_COLOUR": ""}
    assert given.unknown(known | misspelt) == {
        "WORKBOT_SMTP_HSOT": "WORKBOT_SMTP_HOST",
        "WORKBOT_READERTOTAL": "WORKBOT_READER_TOTAL",
        "WORKBOT_COLOUR": None,
    }


def test_another_data_directory_has_other_marks(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        layout = Layout(tmp_path / name)
        layout.create()
        made.append(given.marks(layout, {"WORKBOT_A": "1"}))
    assert made[0] != made[1]


def test_a_stack_that_has_not_kept_them_is_not_compared(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.create()
    state.write(layout.state, state.State({"kafka": 1}))
    assert given.changed(layout, {"WORKBOT_A": "1"}) is None


def test_what_the_stack_sets_itself_is_named_and_what_tests_read_is_not(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    database = Database("postgresql://x@127.0.0.1:1/x", tmp_path)
    addresses = dict.fromkeys((field.name for field in fields(Endpoints)), "http://127.0.0.1:1")
    endpoints = Endpoints(**{**addresses, "databases": dict.fromkeys(SERVICES, database)})  # type: ignore[arg-type]
    sets = {
        name
        for child in services.children(layout, endpoints, {})
        for name in child.environment
        if name.startswith("WORKBOT_")
    }
    assert given.ignored(dict.fromkeys(sets, "")) == sorted(sets)
    assert {"WORKBOT_PUBLIC_URL", "WORKBOT_KAFKA_BOOTSTRAP", "WORKBOT_HOST", "WORKBOT_PORT"} <= sets
    others = {name for kind in given.KINDS for name in variables(kind).values()} - sets
    assert given.ignored(dict.fromkeys(others, "")) == []
    assert given.unknown({"WORKBOT_TEST_STACK": "/tmp"}) == {}
