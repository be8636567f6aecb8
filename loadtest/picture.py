"""The slots over time, as data for an SVG: which run lay on which slot, and who waited meanwhile. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest import audit
from loadtest.records import Run, Sent

WIDTH = 1120.0
"""Of the drawing area, in SVG units."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One run. `x` and `width` in SVG units, `lane` counts slots from 0."""

    sender: int
    lane: int
    x: float
    width: float
    lent: bool
    outcome: str
    title: str


@dataclass(frozen=True, slots=True)
class Picture:
    """What the template draws. `ticks` are (x, seconds); `backlog` is one polyline per sender, 0 to 100 high."""

    bars: list[Bar]
    lanes: int
    ticks: list[tuple[float, int]]
    backlog: list[str]
    most_waiting: int
    seconds: float

    def x(self, seconds: float) -> float:
        """Where a moment (seconds after the beginning) lies."""
        return round(WIDTH * seconds / self.seconds, 2)


def draw(
    runs: Sequence[Run],
    sent: Sequence[Sent],
    senders: Sequence[str],
    *,
    per_sender: int,
    total: int,
) -> Picture:
    """Lay the runs out on slots, and count what was accepted and not started. Time begins with the first POST."""
    begin = min((one.posted_at for one in sent), default=0.0)
    end = max((run.finished_at for run in runs), default=begin + 1)
    picture = Picture([], total, [], [], 0, max(1.0, end - begin))
    lanes = _lanes(runs, total)
    above = _above_guarantee(runs, per_sender)
    for run, lane in lanes:
        start = run.started_at - begin
        lent = run.lent or (run.document, run.started_at) in above
        picture.bars.append(
            Bar(
                senders.index(run.sender),
                lane,
                picture.x(start),
                round(WIDTH * run.seconds / picture.seconds, 2),
                lent,
                run.outcome,
                f"{run.sender}, {start:.2f} s + {run.seconds:.2f} s, {run.outcome}{', lent slot' if lent else ''}",
            )
        )
    step = _tick(picture.seconds)
    ticks = [(picture.x(second), second) for second in range(0, int(picture.seconds) + 1, step)]
    steps = [_waiting(sender, runs, sent) for sender in senders]
    most = max((waiting for changes in steps for _, waiting in changes), default=0)
    return Picture(
        picture.bars,
        max([total, *(lane + 1 for _, lane in lanes)]),
        ticks,
        [_polyline(changes, picture, begin, max(1, most)) for changes in steps],
        most,
        picture.seconds,
    )


def _lanes(runs: Sequence[Run], total: int) -> list[tuple[Run, int]]:
    """The lowest slot that is free at each start. More lanes than `total` appear only if more really ran."""
    free_at = [float("-inf")] * total
    placed = []
    for run in sorted(runs, key=lambda run: run.started_at):
        lane = next(
            (number for number, moment in enumerate(free_at) if moment <= run.started_at + audit.TOLERANCE), None
        )
        if lane is None:
            lane = len(free_at)
            free_at.append(0.0)
        free_at[lane] = run.finished_at
        placed.append((run, lane))
    return placed


def _above_guarantee(runs: Sequence[Run], per_sender: int) -> set[tuple[str, float]]:
    return {
        (run.document, run.started_at)
        for sender in {run.sender for run in runs}
        for run, running in audit.with_running([run for run in runs if run.sender == sender])
        if running >= per_sender
    }


def _waiting(sender: str, runs: Sequence[Run], sent: Sequence[Sent]) -> list[tuple[float, int]]:
    accepted = [(one.accepted_at, 1) for one in sent if one.sender == sender and one.accepted_at is not None]
    first_starts: dict[str, float] = {}
    for run in runs:
        if run.sender == sender:
            first_starts[run.document] = min(run.started_at, first_starts.get(run.document, run.started_at))
    changes = sorted([*accepted, *((moment, -1) for moment in first_starts.values())])
    waiting, steps = 0, []
    for moment, change in changes:
        waiting += change
        steps.append((moment, max(0, waiting)))
    return steps


def _polyline(steps: Sequence[tuple[float, int]], picture: Picture, begin: float, most: int) -> str:
    points = []
    height = 0
    for moment, waiting in steps:
        x = picture.x(moment - begin)
        points += [f"{x:g},{100 - 100 * height / most:g}", f"{x:g},{100 - 100 * waiting / most:g}"]
        height = waiting
    return " ".join(points)


def _tick(seconds: float) -> int:
    return next((step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if seconds / step <= 14), 3600)
