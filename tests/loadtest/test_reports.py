"""The written report: complete, self-contained, and comparable with an earlier run."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtest import figures, picture, promises, report
from loadtest.records import Evidence, Run, Sent, Stored
from loadtest.scenario import Scenario

SCENARIO = Scenario(senders=("noisy", "<b>ana</b>"), counts=(4, 2), broken=0, per_sender=1, total=2)
T = 1_700_000_000.0


def evidence(scenario: Scenario = SCENARIO, pace: float = 1.0) -> Evidence:
    """Six jobs of one `pace` each, two at a time."""
    senders = [scenario.noisy] * 4 + [scenario.quiet[0]] * 2
    sent = [
        Sent(n, sender, f"INV-{n}", f"sha{n}", False, f"d{n}", T + n / 10, T + n / 10 + 0.01)
        for n, sender in enumerate(senders)
    ]
    runs = [
        Run(f"d{n}", sender, 1, T + n / 10 + 0.02, T + 1 + n // 2 * pace, T + 1 + (n // 2 + 1) * pace, "done")
        for n, sender in enumerate(senders)
    ]
    stored = [Stored(f"d{n}", sender, "approved", 1) for n, sender in enumerate(senders)]
    return Evidence(sent, stored, runs, calls=[], events=[], dead_letters=[], probe_ms=[1.0])


def write(out: Path, scenario: Scenario, name: str, pace: float = 1.0) -> tuple[Path, Path]:
    gathered = evidence(scenario, pace)
    found = figures.compute(scenario, gathered, run=name, tenant=f"load-{name}")
    lending = None if scenario.lend else report.latest_lending(out, scenario)
    return report.write(out, scenario, gathered, found, promises.check(scenario, found, lending), lending)


class Page(HTMLParser):
    """Collects what matters of a page, and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words += data


def test_the_page_stands_alone_and_is_well_formed(tmp_path: Path) -> None:
    _, html = write(tmp_path, SCENARIO, "r1")
    text = html.read_text("utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links == []
    assert "script" not in page.tags
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert page.tags.count("svg") >= 2
    assert "<b>ana</b>" in page.words


def test_the_picture_has_a_bar_for_every_run_and_a_mark_for_every_loan(tmp_path: Path) -> None:
    text = write(tmp_path, SCENARIO, "r1")[1].read_text("utf-8")
    assert len(re.findall(r'<rect class="run s0"', text)) == 4
    assert len(re.findall(r'<rect class="run s1"', text)) == 2
    # noisy's second of each pair is above its guarantee of one; so is ana's second.
    assert len(re.findall(r'/><rect class="lent"', text)) == 3


def test_bars_lie_on_slots_without_overlap() -> None:
    gathered = evidence()
    drawn = picture.draw(gathered.runs, gathered.sent, SCENARIO.senders, per_sender=1, total=2)
    assert drawn.lanes == 2
    assert drawn.seconds == 4.0
    assert [(bar.lane, bar.x, bar.width) for bar in drawn.bars] == [
        (lane, picture.WIDTH * start / 4, picture.WIDTH / 4) for start in (1, 2, 3) for lane in (0, 1)
    ]
    assert drawn.ticks == [(picture.WIDTH * second / 4, second) for second in range(5)]


def test_more_runs_than_slots_show_as_more_lanes() -> None:
    runs = [Run(f"d{n}", "noisy", 1, T, T, T + 1, "done") for n in range(3)]
    assert picture.draw(runs, [], ["noisy"], per_sender=1, total=2).lanes == 3


def test_the_json_holds_figures_and_promises(tmp_path: Path) -> None:
    path, _ = write(tmp_path, SCENARIO, "r1")
    found = json.loads(path.read_text("utf-8"))
    assert found["run"]["id"] == "r1"
    assert found["senders"]["noisy"]["sent"] == 4
    assert {"name", "promised", "measured", "held"} == set(found["promises"][0])


def test_a_strict_run_is_compared_with_the_newest_lending_run_on_the_same_terms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "JOBS_A_SLOT", 3)
    strict = replace(SCENARIO, lend=False)
    assert report.latest_lending(tmp_path, strict) is None
    write(tmp_path, SCENARIO, "20260101-1", pace=5.0)
    write(tmp_path, SCENARIO, "20260102-1", pace=2.0)
    write(tmp_path, replace(SCENARIO, seed=1), "20260103-1")
    write(tmp_path, strict, "20260104-1")
    (tmp_path / report.HISTORY / "20260105-1.json").write_text("{not json", "utf-8")
    lending = report.latest_lending(tmp_path, strict)
    assert lending is not None
    assert lending["run"]["id"] == "20260102-1"
    path, html = write(tmp_path, strict, "20260106-1")
    (gain,) = [p for p in json.loads(path.read_text("utf-8"))["promises"] if "gain" in p["name"]]
    # Measured from ana's first POST (0.4) to 1 + 3 paces: 6.6 s with lending (pace 2), 3.6 s here (pace 1).
    assert gain["measured"] == round(6.6 / 3.6, 4)
    assert not gain["held"]
    assert "The others with lending" in html.read_text("utf-8")


def test_every_run_keeps_its_page_and_the_newest_is_at_hand(tmp_path: Path) -> None:
    first = write(tmp_path, SCENARIO, "r1")[1].read_text("utf-8")
    newest = write(tmp_path, SCENARIO, "r2", pace=2.0)[1].read_text("utf-8")
    assert first != newest
    assert report.kept_page(tmp_path, "r1").read_text("utf-8") == first
    assert report.kept_page(tmp_path, "r2").read_text("utf-8") == newest


def test_an_interrupted_run_without_any_evidence_still_renders(tmp_path: Path) -> None:
    nothing = Evidence([], [], [], [], [], [], [])
    found = figures.compute(SCENARIO, nothing, run="r", tenant="t")
    assert "not measured" in report.render(SCENARIO, nothing, found, promises.check(SCENARIO, found), None)
