"""Fault runs: `python -m tests.chaos --help`. Strikes a stack of its own under load and audits what became of it."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from loadtest.faults import Terms
from loadtest.provider import ProviderProcess
from stack import journal
from tests.chaos import report, schedule
from tests.chaos.program import Site, documents_run, jobs_run
from tests.chaos.records import KINDS, Kind
from tests.chaos.runner import Result
from tests.chaos.stage import keep_logs, own_stack

OUT = Path(__file__).parent / "out"

MEAN_SECONDS = 0.4
"""The simulated provider's time for a document."""


async def perform(
    folder: Path,
    *,
    seed: int,
    jobs: int,
    kills: int,
    minutes: float,
    kinds: tuple[Kind, ...],
    documents: int,
    killers: int,
    freeze_seconds: float,
    away_seconds: float,
) -> list[Result]:
    """Everything that was asked for, on one stack. The report is written anew after each run."""
    results: list[Result] = []
    async with ProviderProcess(Terms(seed=seed, mean=MEAN_SECONDS)) as provider:
        given = {"WORKBOT_MODEL_URL": provider.model_url, "WORKBOT_FETCH_ALLOW": provider.address}
        _say("Starting a stack of its own.")
        with own_stack(services=True, environment=given) as data_dir:
            site = Site(data_dir, folder, provider, _say)
            try:
                for number, kind in enumerate(kinds if documents else ()):
                    held = freeze_seconds if kind == "freeze" else away_seconds
                    results.append(
                        await documents_run(
                            site, seed=seed * 100 + number, kind=kind, documents=documents, seconds=held
                        )
                    )
                    report.write(results, folder)
                if jobs:
                    faults = schedule.plan(seed, kinds, kills)
                    wave_seconds = minutes * 60 / max(1, kills)
                    results.append(
                        await jobs_run(
                            site, seed=seed, jobs=jobs, faults=faults, killers=killers, wave_seconds=wave_seconds
                        )
                    )
            finally:
                keep_logs(data_dir, folder / "logs")
    return results


def command(
    seed: Annotated[int, typer.Option(help="The same seed gives the same schedule and the same jobs.")] = 1,
    jobs: Annotated[int, typer.Option(help="No-op jobs of the last run; 0 leaves it out.")] = 20_000,
    kills: Annotated[int, typer.Option(help="Faults over the no-op jobs.")] = 20,
    minutes: Annotated[float, typer.Option(help="The no-op jobs are spread over at least this long.")] = 0.0,
    kinds: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(KINDS)}.")] = ",".join(KINDS),
    documents: Annotated[int, typer.Option(help="Documents of each run with one fault; 0 leaves them out.")] = 500,
    killers: Annotated[int, typer.Option(help="No-op jobs that kill their process.")] = 0,
    freeze: Annotated[float, typer.Option(help="Seconds a worker is frozen amid the documents.")] = 120.0,
    away: Annotated[float, typer.Option(help="Seconds a server is kept away amid the documents.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Where the report is kept, in a folder of its own.")] = OUT,
) -> None:
    """One fault of each kind in the middle of many documents, then many faults over many no-op jobs.

    Exits with 1 when a promise was not kept.
    """
    known: dict[str, Kind] = {kind: kind for kind in KINDS}
    wanted = [name.strip() for name in kinds.split(",") if name.strip()]
    if not wanted or not set(wanted) <= set(known):
        raise typer.BadParameter(f"choose from {', '.join(KINDS)}", param_hint="--kinds")
    folder = out.resolve() / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-seed-{seed}"
    folder.mkdir(parents=True)
    with journal.kept_in(folder / "crew.log"):
        results = asyncio.run(
            perform(
                folder,
                seed=seed,
                jobs=jobs,
                kills=kills,
                minutes=minutes,
                kinds=tuple(known[name] for name in wanted),
                documents=documents,
                killers=killers,
                freeze_seconds=freeze,
                away_seconds=away,
            )
        )
    readable = report.write(results, folder)
    _say(f"\n{report.table(results)}\n\n{readable}")
    sys.exit(any(result.broken() for result in results))


def _say(text: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n" if text[:1] != "\n" else f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(command)
