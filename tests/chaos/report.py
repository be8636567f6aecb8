"""What is kept of a fault run: the schedule, the strikes, the findings, as JSON and for people."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos import schedule
from tests.chaos.audit import worst
from tests.chaos.records import Strike
from tests.chaos.runner import Result

_COLUMNS = (
    "run",
    "jobs",
    "lost",
    "twice",
    "dead",
    "order",
    "caps",
    "refused",
    "stall",
    "ours",
    "re-runs",
    "back",
    "seconds",
    "",
)


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Everything."""
    return [
        {
            "run": result.name,
            "seed": result.seed,
            "seconds": round(result.seconds, 1),
            "schedule": [asdict(fault) for fault in result.schedule],
            "strikes": [asdict(strike) | {"recovery": strike.recovery} for strike in result.strikes],
            "findings": [found.as_json() for found in result.findings],
            "broken": result.broken(),
        }
        for result in results
    ]


def table(results: Sequence[Result]) -> str:
    """One line per run and load."""
    rows = [_COLUMNS]
    for result in results:
        slowest = max((strike.recovery or 0.0 for strike in result.strikes), default=0.0)
        for found in result.findings:
            again = max(found.reruns.values(), default=0)
            rows.append(
                (
                    f"{result.name}, {found.load}",
                    f"{found.ended}/{found.jobs}",
                    str(len(found.lost)),
                    str(len(found.twice)),
                    str(len(found.innocent_dead) + len(found.charged)),
                    str(len(found.out_of_order)),
                    str(len(found.above_caps)),
                    str(len(found.refused)),
                    f"{worst(found.in_all).seconds:.1f} s",
                    f"{worst(found.stalls).seconds:.1f} s",
                    f"{again} of {max(found.slots.values(), default=0)}",
                    f"{slowest:.1f} s",
                    f"{result.seconds:.0f}",
                    "BROKEN" if found.broken() else "kept",
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def text(results: Sequence[Result]) -> str:
    """The whole report for people."""
    parts = [table(results), _LEGEND]
    for result in results:
        parts.append(f"{result.name}, seed {result.seed}\n" + "\n".join(schedule.lines(result.schedule)))
        parts.append("\n".join(map(line, result.strikes)))
        for found in result.findings:
            again = ", ".join(f"{count} after fault {number}" for number, count in found.reruns.items()) or "none"
            stalls = ", ".join(f"{name} {stall.seconds:.1f} s" for name, stall in found.in_all.items())
            figures = ", ".join(f"{name} {value:g}" for name, value in found.figures.items())
            parts.append(f"{found.load}: re-runs: {again}; longest stall: {stalls}; {figures}")
        parts.append("\n".join(result.broken()) or "Every promise was kept.")
    return "\n\n".join(part for part in parts if part) + "\n"


def write(results: Sequence[Result], folder: Path) -> Path:
    """Keep the report in the folder; returns the readable file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(as_json(results), indent=1), "utf-8")
    readable = folder / "report.txt"
    readable.write_text(text(results), "utf-8")
    return readable


def line(strike: Strike) -> str:
    """One strike, and when what it hit was back."""
    held = f"held for {strike.fault.seconds:g} s, then " if strike.fault.seconds else ""
    begin = "being let go" if strike.fault.seconds else "the strike"
    back = "not back" if strike.recovery is None else f"back {strike.recovery:.1f} s after {begin}"
    return f"{strike.fault.number:>3}  {strike.fault.kind:<16} {strike.victim:<18} pid {strike.pid:<8} {held}{back}"


_LEGEND = """\
lost: jobs without their end. twice: more than one effect. dead: innocent jobs set aside, or charged an attempt.
order: effects out of order. caps: starts above a cap. refused: calls without the answer that was promised.
stall: longest time with work waiting and nothing starting (without the time a server was kept down on purpose);
ours: while all servers answered.
re-runs: most runs one fault made start again, of those that could be under way. back: slowest return of a process,
from the strike, or for one that was held on purpose from when it was let go."""
