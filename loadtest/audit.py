"""Did the queue keep its caps? Answered from records of ready, start and stop alone.

Several stamps can belong to one decision (one job ends, the next starts), taken within a moment of each other and in
either order. Every doubt within `TOLERANCE` is resolved in the queue's favour; nothing longer is forgiven.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from loadtest.records import Run

TOLERANCE = 0.001
"""Seconds. The clock itself resolves microseconds; a decision takes well under a millisecond."""

Rule = Literal["lent_while_guaranteed_waited", "above_strict_cap", "over_total", "started_before_ready", "ran_twice"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One start that broke a rule."""

    rule: Rule
    at: float
    document: str
    sender: str
    detail: str


def violations(
    runs: Sequence[Run], *, per_sender: int, total: int, lend: bool, tolerance: float = TOLERANCE
) -> list[Violation]:
    """Every broken rule, in order of time. One start can break several."""
    found: list[Violation] = []
    by_sender = _grouped(runs)
    rivals = {sender: _Rival(own, tolerance) for sender, own in by_sender.items()}
    for sender, own in by_sender.items():
        for run, running in with_running(own, tolerance):
            if running < per_sender:
                continue
            if not lend:
                found.append(_violation("above_strict_cap", run, f"{running} already ran, the cap is {per_sender}"))
                continue
            for other, rival in rivals.items():
                if other != sender and rival.entitled(run.started_at, per_sender):
                    detail = f"{running} already ran while {other} waited under its guarantee"
                    found.append(_violation("lent_while_guaranteed_waited", run, detail))
                    break
    for run, running in with_running(runs, tolerance):
        if running >= total:
            found.append(_violation("over_total", run, f"{running} already ran, the total is {total}"))
        if run.started_at < run.ready_at - tolerance:
            early = run.ready_at - run.started_at
            found.append(_violation("started_before_ready", run, f"ready only {early:.3f} s after its start"))
    found.extend(_overlaps(runs, tolerance))
    return sorted(found, key=lambda violation: violation.at)


def lent_starts(runs: Sequence[Run], *, per_sender: int, tolerance: float = TOLERANCE) -> Counter[str]:
    """How many starts of each sender were above its guarantee, by the stamps (not by the consumer's own word)."""
    return Counter(
        {
            sender: sum(running >= per_sender for _, running in with_running(own, tolerance))
            for sender, own in _grouped(runs).items()
        }
    )


class _Rival:
    """One sender as seen by the others: was it owed a slot? Only if that is beyond doubt."""

    def __init__(self, own: Sequence[Run], tolerance: float) -> None:
        waits = [(run.ready_at + tolerance, run.started_at - tolerance) for run in own]
        self._waiting = _Intervals(wait for wait in waits if wait[0] < wait[1])
        self._running = _Intervals((run.started_at - tolerance, run.finished_at + tolerance) for run in own)

    def entitled(self, moment: float, per_sender: int) -> bool:
        return self._waiting.at(moment) > 0 and self._running.at(moment) < per_sender


class _Intervals:
    """How many of a set of intervals [begin, end) hold a moment."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        kept = list(spans)
        self._begins = sorted(begin for begin, _ in kept)
        self._ends = sorted(end for _, end in kept)

    def at(self, moment: float) -> int:
        return bisect_right(self._begins, moment) - bisect_right(self._ends, moment)


def with_running(runs: Sequence[Run], tolerance: float = TOLERANCE) -> Iterable[tuple[Run, int]]:
    """Each run in order of start, with how many earlier ones still ran then. Equal stamps count one after another."""
    ordered = sorted(runs, key=lambda run: run.started_at)
    ends = sorted(max(run.started_at, run.finished_at - tolerance) for run in ordered)
    for position, run in enumerate(ordered):
        yield run, max(0, position - bisect_right(ends, run.started_at))


def _overlaps(runs: Sequence[Run], tolerance: float) -> list[Violation]:
    by_document: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.started_at):
        by_document[run.document].append(run)
    return [
        _violation("ran_twice", later, "another run of the same job had not ended")
        for own in by_document.values()
        for earlier, later in pairwise(own)
        if later.started_at < earlier.finished_at - tolerance
    ]


def _grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.sender].append(run)
    return groups


def _violation(rule: Rule, run: Run, detail: str) -> Violation:
    return Violation(rule, run.started_at, run.document, run.sender, detail)
