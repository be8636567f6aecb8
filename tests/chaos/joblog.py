"""What a worker's handlers did, as lines in a file of its own: independent of the database and of a kill -9.

One write a line: the kernel has it even when the process is killed the moment after.
"""

import os
import time
from pathlib import Path
from typing import get_args

from tests.chaos.records import Ended, Outcome, Started

OUTCOMES = frozenset(get_args(Outcome))


class JobLog:
    """The writing side, one per process."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / f"{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def started(self, consumer: str, job: str, attempt: int) -> None:
        """A handler begins."""
        self._write(f"{time.time():.6f} {consumer} {job} {attempt}\n")

    def ended(self, consumer: str, job: str, attempt: int, outcome: Outcome) -> None:
        """A handler ends."""
        self._write(f"{time.time():.6f} {consumer} {job} {attempt} {outcome}\n")

    def _write(self, line: str) -> None:
        os.write(self._file, line.encode("ascii"))


class JobLogs:
    """The reading side: follows the logs of every worker of a run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.started: list[Started] = []
        self.ended: list[Ended] = []
        self.done: set[str] = set()
        self._read: dict[Path, int] = {}

    def follow(self) -> None:
        """Take in what was written since the last time."""
        for path in sorted(self.folder.glob("*.log")):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = begin + len(whole)
            for line in whole.decode("ascii").splitlines():
                self._take(int(path.stem), line.split())

    def knows(self, pid: int) -> bool:
        """Whether this process has come so far as to open its log."""
        return (self.folder / f"{pid}.log").exists()

    def _take(self, pid: int, words: list[str]) -> None:
        at, consumer, job, attempt = float(words[0]), words[1], words[2], int(words[3])
        if len(words) == 4:
            self.started.append(Started(consumer, job, attempt, pid, at))
            return
        outcome = words[4]
        assert outcome in OUTCOMES, outcome
        self.ended.append(Ended(consumer, job, attempt, pid, at, outcome))  # type: ignore[arg-type]
        if outcome == "done":
            self.done.add(job)
