"""What the terminal shows: progress while the run goes on, then the table per sender and the promises."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.figures import Figures
from loadtest.promises import Promise
from loadtest.scenario import Scenario


class Board:
    """A progress bar per sender. A document advances it when it has ended, read or failed."""

    def __init__(self, progress: Progress, scenario: Scenario) -> None:
        self._progress, self._scenario = progress, scenario
        self._all = progress.add_task("all", total=scenario.documents, note="")
        self._own = {
            sender: progress.add_task(sender, total=count, note="")
            for sender, count in zip(scenario.senders, scenario.counts, strict=True)
        }
        self._sent = dict.fromkeys(scenario.senders, 0)

    def sent(self, sender: str) -> None:
        """One more POST was answered."""
        self._sent[sender] += 1

    def show(self, ended: Mapping[str, int], reading: Mapping[str, int]) -> None:
        """Move the bars to the present state: ended documents and those on a slot, per sender."""
        for sender, task in self._own.items():
            note = f"{self._sent[sender]} sent, {reading.get(sender, 0)} being read"
            self._progress.update(task, completed=ended.get(sender, 0), note=note)
        note = f"{sum(self._sent.values())} sent, {sum(reading.values())} being read"
        self._progress.update(self._all, completed=sum(ended.values()), note=note)


@contextmanager
def board(console: Console, scenario: Scenario) -> Iterator[Board]:
    """Show the progress bars for the length of a block."""
    with Progress(
        TextColumn("{task.description}", style="bold"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
        console=console,
    ) as progress:
        yield Board(progress, scenario)


def senders_table(figures: Figures) -> Table:
    """Who sent what, and when it was finished: percentiles are of the time from sending to done."""
    title = f"Who finished when (run {figures['run']['id']}; seconds)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("sender", style="bold")
    for heading in ("sent", "read", "failed", "dead\nletters", "first\nstart", "done", "p50", "p95", "max"):
        table.add_column(heading, justify="right")
    for name, own in figures["senders"].items():
        counts = (own["sent"], own["read"], own["failed"], own["dead_letters"])
        times = (own["first_start_s"], own["done_s"], *(own["latency_s"][share] for share in ("p50", "p95", "max")))
        table.add_row(name, *map(str, counts), *map(_seconds, times))
    return table


def promises_table(promises: Sequence[Promise]) -> Table:
    """Each promise with what was measured."""
    table = Table(title="Promises", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("figure")
    table.add_column("promised", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for promise in promises:
        measured = "not measured" if promise.measured is None else f"{promise.measured:g}"
        table.add_row(
            promise.name, promise.promised, measured, "[green]kept[/]" if promise.held else "[bold red]not kept[/]"
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
