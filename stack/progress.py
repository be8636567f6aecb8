"""How downloads are shown: a bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


class Lines:
    """One line per event, written by `write`."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def note(self, text: str) -> None:
        self._write(text)

    @contextmanager
    def begin(self, files: int) -> Iterator[None]:
        self._write(f"Downloading {files} {'file' if files == 1 else 'files'} …")
        yield
        self._write("Downloads are complete and verified.")

    @contextmanager
    def file(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        self._write(f"  {name} ({size / 1e6:.1f} MB)")
        yield lambda _bytes: None


class Bars:
    """One bar for the whole batch: files done, bytes of those seen so far, speed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None

    def note(self, text: str) -> None:
        self._console.print(text)

    @contextmanager
    def begin(self, files: int) -> Iterator[None]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=self._console) as self._bar:
            self._task = self._bar.add_task(f"Downloading {files} {'file' if files == 1 else 'files'}", total=0)
            yield
        self._bar = None

    @contextmanager
    def file(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        bar = self._bar
        if bar is None:
            yield lambda _bytes: None
            return
        bar.update(self._task, total=(bar.tasks[0].total or 0) + size)
        yield lambda count: bar.advance(self._task, count)


def shown_on(console: Console) -> Lines | Bars:
    """Bars on a terminal, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(lambda text: console.print(text, highlight=False))
