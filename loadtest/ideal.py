"""The yardstick: guarantee + lending as a plain event simulation, with no cost for anything but the jobs themselves.

It knows every job's length, starts the next one in the very instant a slot is free, and so shows what the queue's
rules alone make of a run's arrivals. It shares no code with the scheduler it is compared to.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `runs` are its (seconds waited before, seconds on a slot): one pair, or several with retries."""

    sender: str
    arrival: float
    runs: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Played:
    """One run of a job (by its position in the input) as the simulation placed it."""

    job: int
    sender: str
    started_at: float
    finished_at: float
    lent: bool


def simulate(jobs: Sequence[Job], *, per_sender: int, total: int, lend: bool = True) -> list[Played]:
    """Play the jobs; the runs come back in order of their start."""
    return _Game(jobs, per_sender, total, lend).play()


def done_at(played: Sequence[Played], senders: Sequence[str]) -> float:
    """When the last run of the given senders ends. Raises ValueError when they have none."""
    return max(run.finished_at for run in played if run.sender in senders)


class _Game:
    def __init__(self, jobs: Sequence[Job], per_sender: int, total: int, lend: bool) -> None:
        self._jobs = jobs
        self._per_sender, self._total, self._lend = per_sender, total, lend
        names = sorted({job.sender for job in jobs})
        self._waiting: dict[str, deque[tuple[float, int, int]]] = {name: deque() for name in names}
        self._running = dict.fromkeys(names, 0)
        self._used = dict.fromkeys(names, 0.0)
        # (time, 0 = a slot is free again | 1 = a run is ready, job, run): at one instant slots are freed first.
        self._events = [(job.arrival + job.runs[0][0], 1, number, 0) for number, job in enumerate(jobs)]
        heapq.heapify(self._events)

    def play(self) -> list[Played]:
        played: list[Played] = []
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                self._happen(*heapq.heappop(self._events))
            while sum(self._running.values()) < self._total and (sender := self._next()) is not None:
                played.append(self._start(sender, now))
        return played

    def _happen(self, now: float, kind: int, number: int, run: int) -> None:
        job = self._jobs[number]
        if kind == 1:
            self._join(job.sender)
            self._waiting[job.sender].append((now, number, run))
            return
        self._running[job.sender] -= 1
        if run + 1 < len(job.runs):
            heapq.heappush(self._events, (now + job.runs[run + 1][0], 1, number, run + 1))

    def _join(self, sender: str) -> None:
        """A sender that was idle starts level with the least served of the active ones: idleness earns no credit."""
        if self._waiting[sender] or self._running[sender]:
            return
        active = [self._used[name] for name in self._used if self._waiting[name] or self._running[name]]
        self._used[sender] = max(self._used[sender], min(active, default=0.0))

    def _next(self) -> str | None:
        candidates = [name for name, waiting in self._waiting.items() if waiting]
        guaranteed = [name for name in candidates if self._running[name] < self._per_sender]
        eligible = guaranteed or (candidates if self._lend else [])
        return min(
            eligible,
            key=lambda name: (self._running[name], self._used[name], self._waiting[name][0]),
            default=None,
        )

    def _start(self, sender: str, now: float) -> Played:
        _, number, run = self._waiting[sender].popleft()
        seconds = self._jobs[number].runs[run][1]
        lent = self._running[sender] >= self._per_sender
        self._running[sender] += 1
        self._used[sender] += seconds
        heapq.heappush(self._events, (now + seconds, 0, number, run))
        return Played(number, sender, now, now + seconds, lent)
