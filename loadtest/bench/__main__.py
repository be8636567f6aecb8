"""The command line of the bench: `python -m loadtest.bench`, or `make bench`."""

import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.bench import quiet, run, servers, table
from loadtest.bench.figures import Figure, missed
from loadtest.bench.sizes import Sizes
from messaging.errors import MessagingError, reason
from messaging.process import settle_memory
from stack import control, sentences

JSON = Path(__file__).parents[1] / "out" / "bench.json"
MISSED, FAILED, BROKEN_OFF = 1, 2, 130
"""Exit codes: a promise was not kept (with --check); nothing could be measured; Ctrl-C."""

_DEFAULT = Sizes()

_WIDTH = 120
"""Of a table that goes to a file; a terminal has its own."""

screen = Console(width=None if sys.stdout.isatty() else _WIDTH)
err = Console(stderr=True, soft_wrap=True)

app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only this; may be repeated: {', '.join(run.MEASUREMENTS)}."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a promise is not kept.")] = False,
    json: Annotated[Path, typer.Option(help="Where the figures are kept.")] = JSON,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each measurement; their median is shown.")] = (
        _DEFAULT.rounds
    ),
    rows: Annotated[int, typer.Option(min=1, help="Rows of the outbox's backlog.")] = _DEFAULT.rows,
    jobs: Annotated[int, typer.Option(min=1000, help="No-op jobs over 1,000 keys, without ledger.")] = _DEFAULT.jobs,
    rate: Annotated[int, typer.Option(min=1, help="Events and jobs a second, where they come steadily.")] = (
        _DEFAULT.rate
    ),
    seconds: Annotated[
        float, typer.Option(min=0.1, help="For how long they come, in each round.")
    ] = _DEFAULT.seconds,
    senders: Annotated[int, typer.Option(min=100, help="Senders that wait while the scheduler picks.")] = (
        _DEFAULT.senders
    ),
    data_dir: Annotated[
        Path, typer.Option(help="Data folder of the running stack; when none runs, one is started for the bench.")
    ] = control.DEFAULT_DATA_DIR,
) -> None:
    """Measure the speed of the parts, each beside a bare loop of the same client in the same run."""
    names = list(dict.fromkeys(only or run.MEASUREMENTS))
    unknown = [name for name in names if name not in run.MEASUREMENTS]
    if unknown:
        raise typer.BadParameter(
            f"There is no {unknown[0]}; there are {', '.join(run.MEASUREMENTS)}.", param_hint="--only"
        )
    sizes = Sizes(rounds, rows, jobs, rate, seconds, senders)
    begun, started_at = time.monotonic(), f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    try:
        with servers.opened(data_dir, screen) as given:
            figures = _measure(given, sizes, names)
    except KeyboardInterrupt:
        err.print("Broken off; the topics and the database of the bench are gone.", highlight=False)
        raise typer.Exit(BROKEN_OFF) from None
    except sentences.EXPECTED as error:
        # Without what to do about the stack's parts: it may be the bench's own, and gone by now.
        said = str(error) if isinstance(error, MessagingError) else f"{reason(error)}."
        err.print(sentences.for_folder(said, data_dir), highlight=False, markup=False)
        raise typer.Exit(FAILED) from None
    table.keep(table.as_json(figures, sizes, started_at=started_at, seconds=time.monotonic() - begun), json)
    _show(figures, sizes, json)
    if check and missed(figures):
        raise typer.Exit(MISSED)


def _measure(given: servers.Servers, sizes: Sizes, names: Sequence[str]) -> list[Figure]:
    # As in the processes of the layer.
    settle_memory()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=screen, refresh_per_second=4, transient=True) as progress:
            task = progress.add_task("", total=len(names) * sizes.rounds)

            def on_round(name: str, number: int) -> None:
                done = names.index(name) * sizes.rounds + number
                if not screen.is_terminal and number == 0:
                    screen.print(f"Measuring {name}", style="dim")
                progress.update(task, description=f"{name}, round {number + 1}", completed=done)

            return uvloop.run(run.perform(given, sizes, names, on_round))
    finally:
        gc.unfreeze()


def _show(figures: Sequence[Figure], sizes: Sizes, kept_in: Path) -> None:
    screen.print(table.table(figures, sizes))
    for figure in missed(figures):
        screen.print(f"[bold red]Missed:[/] {table.told(figure)}", highlight=False, soft_wrap=True)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    screen.print(f"{os.cpu_count()} CPUs, load average {load}. Figures: {kept_in}", highlight=False, soft_wrap=True)


def main() -> None:
    """The process."""
    quiet.be_quiet()
    # SIGTERM breaks it off as Ctrl-C does, so that nothing is left behind. Shells start background jobs deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.kill(os.getpid(), signal.SIGINT))
    app(prog_name="python -m loadtest.bench")


if __name__ == "__main__":
    main()
