"""Writes a run's report as JSON and as one self-contained page, and finds earlier runs to compare with."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtest.figures import Figures
from loadtest.picture import draw
from loadtest.promises import Promise
from loadtest.records import Evidence
from loadtest.scenario import Scenario

HISTORY = "runs"
"""Folder under the output folder with every run's figures and page, named by run id (ids sort by time)."""


def kept_page(out: Path, run: str) -> Path:
    """The page of one run, which no later run writes over."""
    return out / HISTORY / f"{run}.html"


def write(
    out: Path,
    scenario: Scenario,
    evidence: Evidence,
    figures: Figures,
    promises: Sequence[Promise],
    lending: Figures | None,
) -> tuple[Path, Path]:
    """Write report.json and report.html into `out`; returns their paths. Also keeps both in the history."""
    text = json.dumps({**figures, "promises": [asdict(promise) for promise in promises]}, indent=2) + "\n"
    (out / HISTORY).mkdir(parents=True, exist_ok=True)
    (out / HISTORY / f"{figures['run']['id']}.json").write_text(text, "utf-8")
    report, page = out / "report.json", out / "report.html"
    report.write_text(text, "utf-8")
    drawn = render(scenario, evidence, figures, promises, lending)
    kept_page(out, figures["run"]["id"]).write_text(drawn, "utf-8")
    page.write_text(drawn, "utf-8")
    return report, page


def render(
    scenario: Scenario,
    evidence: Evidence,
    figures: Figures,
    promises: Sequence[Promise],
    lending: Figures | None,
) -> str:
    """The page: no script, no font, no address but its own, readable in light and dark."""
    begin = min((sent.posted_at for sent in evidence.sent), default=0.0)
    quiet = min((sent.posted_at for sent in evidence.sent if sent.sender in scenario.quiet), default=begin)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        scenario=scenario,
        figures=figures,
        promises=promises,
        lending=lending,
        picture=draw(
            evidence.runs,
            evidence.sent,
            scenario.senders,
            per_sender=scenario.per_sender,
            total=scenario.total,
        ),
        quiet_from=quiet - begin,
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
    )


def latest_lending(out: Path, scenario: Scenario) -> Figures | None:
    """The newest earlier run with lending on the same terms, or None. A file that is no report is passed over."""
    for path in sorted((out / HISTORY).glob("*.json"), reverse=True):
        try:
            figures = json.loads(path.read_text("utf-8"))
            matches = figures["run"]["lend"] and figures["run"]["scenario"] == _as_json(scenario.terms())
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if matches:
            return dict(figures)
    return None


def _as_json(value: object) -> object:
    return json.loads(json.dumps(value))
