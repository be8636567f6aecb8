"""The command line of the load test: `python -m loadtest`, or `workbot load`."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest import console, promises, report, run
from loadtest.scenario import Scenario
from loadtest.stage import Stage
from messaging.errors import MessagingError
from stack import control, sentences
from stack.terminal import PAPER

OUT = Path(__file__).parent / "out"
_DEFAULT = Scenario()
_NAMES = _DEFAULT.senders
_CALLED_AS = "--called-as="
DEMO = "workbot demo"
_DEMO_HELP = (
    "Start the stack if it does not run, flood the document queue with one noisy sender, show what the others notice "
    "of it, and say where everything is. The stack is left running; `workbot down` stops it. For another data "
    "folder: `workbot --data-dir DIR demo`."
)
MISSED, NOT_STARTED, BROKEN_OFF = 1, 2, 130
"""Exit codes: a promise was not kept; the run could not start or go on; Ctrl-C."""

screen = Console(width=None if sys.stdout.isatty() else PAPER)
err = Console(stderr=True, soft_wrap=True)


app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def load(
    senders: Annotated[str, typer.Option(help="Names, comma-separated; the first is the noisy one.")] = "",
    counts: Annotated[str, typer.Option(help="Documents per sender, comma-separated.")] = ",".join(
        map(str, _DEFAULT.counts)
    ),
    broken: Annotated[
        int | None, typer.Option(help="Broken PDFs among the noisy sender's; a third of them unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of documents, times and failures.")] = _DEFAULT.seed,
    mean: Annotated[float, typer.Option(help="Mean seconds of provider time per document.")] = _DEFAULT.mean,
    error_rate: Annotated[float, typer.Option(help="Share of provider calls answered 500.")] = 0.0,
    timeout_rate: Annotated[float, typer.Option(help="Share of provider calls never answered.")] = 0.0,
    throttle_rate: Annotated[float, typer.Option(help="Share of provider calls answered 429.")] = 0.0,
    lending: Annotated[bool, typer.Option(help="Lend idle slots to whoever has work.")] = True,
    per_sender: Annotated[int, typer.Option(help="Slots guaranteed to each sender.")] = _DEFAULT.per_sender,
    total: Annotated[int, typer.Option(help="Slots in all.")] = _DEFAULT.total,
    api: Annotated[str | None, typer.Option(help="Send to this address instead of the stack's API.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the reports.")] = OUT,
    check: Annotated[
        bool | None,
        typer.Option(help="Exit with 1 when a promise is not kept. On for the standard 500 documents, else off."),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(help="Data folder of the stack, which must run.")
    ] = control.DEFAULT_DATA_DIR,
) -> None:
    """Flood the document queue with one noisy sender and show what the others notice of it."""
    try:
        scenario = _scenario(
            senders, counts, broken, seed=seed, mean=mean, error_rate=error_rate, timeout_rate=timeout_rate,
            throttle_rate=throttle_rate, lend=lending, per_sender=per_sender, total=total,
        )  # fmt: skip
        stage = Stage(data_dir)
        test = run.LoadTest(scenario, stage, screen, api)
    except (ValueError, MessagingError) as fault:
        _say_why(fault, data_dir)
        raise typer.Exit(NOT_STARTED) from None
    load_before = os.getloadavg()[0]
    try:
        result = asyncio.run(_until_signalled(test, out))
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say_what_is_left(test.left)
        raise typer.Exit(BROKEN_OFF) from None
    except BrokenPipeError:
        # As for every command: whoever reads what is printed has gone.
        raise
    except sentences.EXPECTED as fault:
        _say_why(fault, data_dir)
        raise typer.Exit(NOT_STARTED) from None
    _show(result, load_before)
    missed = [promise for promise in result.promises if not promise.held]
    standard = (scenario.counts, scenario.broken, scenario.mean) == (
        _DEFAULT.counts,
        _DEFAULT.broken,
        _DEFAULT.mean,
    )
    if missed and (standard if check is None else check):
        raise typer.Exit(MISSED)


def _say_why(fault: Exception, data_dir: Path) -> None:
    said = str(fault) if isinstance(fault, ValueError) else sentences.told(fault)
    err.print(sentences.for_folder(said, data_dir), style="red", highlight=False, markup=False)


def _scenario(senders: str, counts: str, broken: int | None, **options: float | bool) -> Scenario:
    parts = [part.strip() for part in counts.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"--counts takes whole numbers, comma-separated, not {counts!r}")
    numbers = tuple(map(int, parts))
    more = tuple(f"sender-{number}" for number in range(len(_NAMES) + 1, len(numbers) + 1))
    names = tuple(name.strip() for name in senders.split(",")) if senders else (_NAMES + more)[: len(numbers)]
    return Scenario(names, numbers, numbers[0] // 3 if broken is None else broken, **options)  # type: ignore[arg-type]


async def _until_signalled(test: run.LoadTest, out: Path) -> run.Result:
    """Perform the run; SIGTERM, and the end of the terminal, break it off as Ctrl-C does."""
    task = asyncio.ensure_future(test.perform(out))
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def _show(result: run.Result, load_before: float) -> None:
    screen.print()
    screen.print(console.senders_table(result.figures))
    screen.print(console.promises_table(result.promises))
    for promise in result.promises:
        if not promise.held:
            screen.print(f"[bold red]Not kept:[/] {_told(promise)}", highlight=False)
    screen.print(
        f"{os.cpu_count()} CPUs, load average {load_before:.1f} before the run, {os.getloadavg()[0]:.1f} after it.",
        highlight=False,
    )
    if any(not promise.held and promise.of_time for promise in result.promises):
        screen.print(
            "A machine that is busy with something else can miss a promise of time. See that it is idle, then "
            "repeat: `workbot load`.",
            highlight=False,
            soft_wrap=True,
        )
    run_of = result.figures["run"]
    fewest = promises.fewest(run_of["scenario"]["total"])
    if run_of["documents"] < fewest:
        screen.print(f"Times are promised from {fewest} documents on; the report has them all the same.", style="dim")
    kept = report.kept_page(result.page.parent, run_of["id"])
    screen.print(
        f"\nReport: {kept}\nFigures: {kept.with_suffix('.json')}\nThe newest is also {result.page}.",
        highlight=False,
        soft_wrap=True,
    )


def _told(promise: promises.Promise) -> str:
    measured = "not measured" if promise.measured is None else f"{promise.measured:g}"
    return f"{promise.name} is {measured}, promised {promise.promised}"


def _say_what_is_left(left: run.Left) -> None:
    accepted = sum(sent.id is not None for sent in left.sent)
    waiting = accepted - left.ended
    err.print(f"Broken off. {accepted} documents were accepted as tenant {left.tenant}, {left.ended} had ended.")
    if waiting:
        err.print(
            f"The other {waiting} are read by the service's own reader now; "
            "web pages among them end as dead letters, because the pages are gone."
        )


def main(arguments: list[str]) -> None:
    """Run with these arguments. The first may say by which name a person called, for the help to say the same."""
    name, rest = "python -m loadtest", arguments
    if rest and rest[0].startswith(_CALLED_AS):
        name, rest = rest[0].removeprefix(_CALLED_AS), rest[1:]
    command = typer.main.get_command(app)
    if name == DEMO:
        command.help = _DEMO_HELP
        for option in command.params:
            # There it stands before the command's name: the stack is started on it.
            option.hidden = option.name == "data_dir"  # type: ignore[attr-defined]
    command(rest, prog_name=name)


if __name__ == "__main__":
    main(sys.argv[1:])
