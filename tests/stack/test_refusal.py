"""The reason a service gives before it stays down."""

import json
from pathlib import Path

from stack import refusal

NOISE = json.dumps({"event": "relay.leads", "level": "info"}) + "\n"


def test_the_event_that_says_it_is_found_among_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = json.dumps({"event": "process.misconfigured", "error": "The key is too short."}) + "\n"
    log.write_text("hello\n" + NOISE + said + NOISE, "utf-8")
    assert refusal.said(log, 0) == "The key is too short"


def test_without_one_it_is_the_last_plain_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"a\nb\n{NOISE}c\n\nmodel_url: not an address\n{NOISE}", "utf-8")
    assert refusal.said(log, 0) == "b c model_url: not an address"


def test_what_an_earlier_run_said_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("earlier\n", "utf-8")
    begin = log.stat().st_size
    assert refusal.said(log, begin) == "it did not say why"
    log.write_text("new\n", "utf-8")
    assert refusal.said(log, begin) == "new", "the log was begun anew"
