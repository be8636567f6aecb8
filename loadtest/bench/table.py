"""How the figures are shown, and kept as JSON."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.bench.figures import Figure
from loadtest.bench.sizes import Sizes

_KEPT = {True: "[green]kept[/]", False: "[bold red]missed[/]", None: ""}


def table(figures: Sequence[Figure], sizes: Sizes) -> Table:
    """A line a figure."""
    terms = (
        f"Medians of {sizes.rounds} rounds. Events and jobs come at {sizes.rate}/s, requests at {sizes.requests:g}/s."
    )
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, caption=terms, caption_justify="left")
    drawn.add_column("part", overflow="fold")
    for heading in ("measured", "bare"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    drawn.add_column("of", style="dim", no_wrap=True)
    for heading in ("ratio", "promised"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    drawn.add_column("", no_wrap=True)
    for figure in figures:
        row = figure.row
        drawn.add_row(
            row.name,
            f"{number(figure.value)} {row.unit}",
            number(figure.bare),
            row.bare,
            ratio(figure.ratio),
            row.promised,
            _KEPT[figure.kept],
        )
    return drawn


def number(value: float) -> str:
    """Short, with as many places as tell something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(value: float) -> str:
    """Three places, so that it can be held against its limit."""
    return f"{value:.3f}"


def told(figure: Figure) -> str:
    """What is to be said of a promise that is not kept."""
    return (
        f"{figure.row.name}: {number(figure.value)} {figure.row.unit}, ratio {ratio(figure.ratio)}; "
        f"promised {figure.row.promised}"
    )


def as_json(figures: Sequence[Figure], sizes: Sizes, *, started_at: str, seconds: float) -> dict[str, Any]:
    """Everything that was measured, every round included, and on what."""
    return {
        "started_at": started_at,
        "seconds": round(seconds, 1),
        "machine": {
            "cpus": os.cpu_count(),
            "load_average": list(os.getloadavg()),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "sizes": asdict(sizes),
        "figures": [
            {
                "key": figure.row.key,
                "name": figure.row.name,
                "unit": figure.row.unit,
                "value": figure.value,
                "bare": figure.bare,
                "beside": figure.row.bare,
                "ratio": figure.ratio,
                "promised": figure.row.promised or None,
                "kept": figure.kept,
                "rounds": [{"value": value, "bare": bare} for value, bare in figure.rounds],
            }
            for figure in figures
        ],
    }


def keep(document: dict[str, Any], path: Path) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", "utf-8")
    unfinished.replace(path)
