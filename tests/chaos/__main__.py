"""Fault runs: `python -m tests.chaos --help`. Strikes a stack of its own under load and audits what became of it."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from loadtest.faults import Terms
from loadtest.provider import ProviderProcess
from stack import journal
from tests.chaos import relays, report, schedule
from tests.chaos.program import Site, documents_run, jobs_run, requests_run
from tests.chaos.records import KINDS, REQUEST_KINDS, Kind
from tests.chaos.runner import Result
from tests.chaos.stage import keep_logs, own_stack

ALL: tuple[Kind, ...] = tuple(dict.fromkeys((*KINDS, *REQUEST_KINDS)))
OUT = Path(__file__).parent / "out"

MEAN_SECONDS = 0.4
"""The simulated provider's time for a document."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run: the options of the command. 0 of something leaves its runs out."""

    seed: int
    kinds: tuple[Kind, ...]
    documents: int
    requests: int
    jobs: int
    kills: int
    minutes: float
    killers: int
    relay_kills: int
    freeze: float
    away: float

    def among(self, kinds: Sequence[Kind]) -> list[Kind]:
        """Those of the kinds that were asked for."""
        return [kind for kind in self.kinds if kind in kinds]


async def perform(folder: Path, wanted: Wanted) -> list[Result]:
    """Everything that was asked for. The report is written anew after each run."""
    results: list[Result] = []

    def keep(result: Result) -> None:
        results.append(result)
        report.write(results, folder)

    if wanted.documents or wanted.requests or wanted.jobs:
        await _struck_stack(folder, wanted, keep)
    if wanted.relay_kills:
        keep(await asyncio.to_thread(relays.run, wanted.relay_kills, wanted.seed, say=_say))
    return results


async def _struck_stack(folder: Path, wanted: Wanted, keep: Callable[[Result], None]) -> None:
    """All runs but the relay's, on one stack."""
    async with ProviderProcess(Terms(seed=wanted.seed, mean=MEAN_SECONDS)) as provider:
        given = {"WORKBOT_MODEL_URL": provider.model_url, "WORKBOT_FETCH_ALLOW": provider.address}
        _say("Starting a stack of its own.")
        with own_stack(services=True, environment=given) as data_dir:
            site = Site(data_dir, folder, provider, _say)
            try:
                for number, kind in enumerate(wanted.among(KINDS) if wanted.documents else ()):
                    held = wanted.freeze if kind == "freeze" else wanted.away
                    seed = wanted.seed * 100 + number
                    keep(await documents_run(site, seed=seed, kind=kind, documents=wanted.documents, seconds=held))
                for kind in wanted.among(REQUEST_KINDS) if wanted.requests else ():
                    keep(
                        await requests_run(
                            site, seed=wanted.seed, kind=kind, requests=wanted.requests, seconds=wanted.away
                        )
                    )
                if wanted.jobs and (kinds := wanted.among(KINDS)):
                    faults = schedule.plan(wanted.seed, kinds, wanted.kills)
                    keep(
                        await jobs_run(
                            site,
                            seed=wanted.seed,
                            jobs=wanted.jobs,
                            faults=faults,
                            killers=wanted.killers,
                            wave_seconds=wanted.minutes * 60 / max(1, wanted.kills),
                        )
                    )
            finally:
                keep_logs(data_dir, folder / "logs")


def command(
    seed: Annotated[int, typer.Option(help="The same seed gives the same schedule and the same jobs.")] = 1,
    jobs: Annotated[int, typer.Option(help="No-op jobs of the last run; 0 leaves it out.")] = 20_000,
    kills: Annotated[int, typer.Option(help="Faults over the no-op jobs.")] = 20,
    minutes: Annotated[float, typer.Option(help="The no-op jobs are spread over at least this long.")] = 0.0,
    kinds: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(ALL)}.")] = ",".join(ALL),
    documents: Annotated[int, typer.Option(help="Documents of each run with one fault; 0 leaves them out.")] = 500,
    requests: Annotated[
        int, typer.Option(help="Requests of each run with one fault, beside those filed while it lasts; 0: none.")
    ] = 1500,
    relay_kills: Annotated[int, typer.Option(help="Kills of the relay's leader, at the end; 0 leaves it out.")] = 20,
    killers: Annotated[int, typer.Option(help="No-op jobs that kill their process.")] = 0,
    freeze: Annotated[float, typer.Option(help="Seconds a worker is frozen amid the documents.")] = 120.0,
    away: Annotated[float, typer.Option(help="Seconds a server is kept away, or notifications frozen.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Where the report is kept, in a folder of its own.")] = OUT,
) -> None:
    """One fault of each kind in the middle of many documents and of many requests, many faults over many no-op jobs,
    and the relay's leader killed again and again.

    Exits with 1 when a promise was not kept.
    """
    known: dict[str, Kind] = {kind: kind for kind in ALL}
    named = [name.strip() for name in kinds.split(",") if name.strip()]
    if not named or not set(named) <= set(known):
        raise typer.BadParameter(f"choose from {', '.join(ALL)}", param_hint="--kinds")
    folder = out.resolve() / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-seed-{seed}"
    folder.mkdir(parents=True)
    with journal.kept_in(folder / "crew.log"):
        wanted = Wanted(
            seed=seed,
            kinds=tuple(known[name] for name in named),
            documents=documents,
            requests=requests,
            jobs=jobs,
            kills=kills,
            minutes=minutes,
            killers=killers,
            relay_kills=relay_kills,
            freeze=freeze,
            away=away,
        )
        results = asyncio.run(perform(folder, wanted))
    readable = report.write(results, folder)
    _say(f"\n{report.table(results)}\n\n{readable}")
    sys.exit(any(result.broken() for result in results))


def _say(text: str) -> None:
    sys.stdout.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n" if text[:1] != "\n" else f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(command)
