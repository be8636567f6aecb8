"""Pure: what the records of a run amount to. Lost, done twice, out of order, above the caps, stalled, run again."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.records import Effect, Ended, Planned, Started, Strike

STALL_SECONDS = 30.0
"""Work that waits longer than this while nothing starts is a fault of the queue."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A job was ready from then on, and started then (None: not until the end of the records)."""

    ready_at: float
    started_at: float | None


@dataclass(frozen=True, slots=True)
class Stall:
    """The longest time in which work waited and nothing started."""

    seconds: float = 0.0
    at: float = 0.0


@dataclass(slots=True)
class Findings:
    """What one load of a run showed. Every list is empty when the queue kept its promises.

    refused   calls that were not answered as promised
    late      what came later than promised
    charged   jobs whose attempts count more than the failures they were told to have
    reruns    by fault number, how many runs had to be started again; 0 stands for no fault at all
    slots     by fault number, how many runs could be under way in the processes it touched
    stalls    by consumer, the longest while the servers answered; `in_all` also while they were starting again
    figures   for people; nothing is judged by them
    """

    load: str
    jobs: int
    ended: int
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    innocent_dead: list[str] = field(default_factory=list)
    charged: list[str] = field(default_factory=list)
    above_caps: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    uncommitted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    reruns: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    stalls: dict[str, Stall] = field(default_factory=dict)
    in_all: dict[str, Stall] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    def stall(self, waits: Mapping[str, Sequence[Wait]], strikes: Sequence[Strike], until: float) -> None:
        """Work the stalls out from when jobs were ready and when they started."""
        for consumer, own in waits.items():
            self.stalls[consumer] = longest_stall(own, [s.down for s in strikes if s.down], until)
            self.in_all[consumer] = longest_stall(own, [s.kept_down for s in strikes if s.kept_down], until)

    def broken(self, *, quick_servers: bool = True) -> list[str]:
        """One line per promise that was not kept. `quick_servers`: their restart is no excuse for a stall."""
        lists = {
            "lost": self.lost,
            "effects twice": self.twice,
            "innocent jobs dead": self.innocent_dead,
            "charged for a fault": self.charged,
            "above the caps": self.above_caps,
            "out of order": self.out_of_order,
            "never committed": self.uncommitted,
            "refused": self.refused,
            "late": self.late,
        }
        said = [f"{self.load}: {len(found)} {what}: {'; '.join(found[:5])}" for what, found in lists.items() if found]
        said += [
            f"{self.load}: nothing started for {stall.seconds:.1f} s although work waited ({name})"
            for name, stall in (self.in_all if quick_servers else self.stalls).items()
            if stall.seconds > STALL_SECONDS
        ]
        said += [
            f"{self.load}: fault {number} made {count} runs start again, {self.slots.get(number, 0)} were under way"
            for number, count in self.reruns.items()
            if count > self.slots.get(number, 0)
        ]
        return said

    def as_json(self) -> dict[str, Any]:
        """The same, made of what JSON knows."""
        return asdict(self) | {"broken": self.broken()}


def worst(stalls: Mapping[str, Stall]) -> Stall:
    """The longest of all consumers."""
    return max(stalls.values(), key=lambda stall: stall.seconds, default=Stall())


def lost(planned: Iterable[Planned], effects: Iterable[Effect], dead: set[str]) -> list[str]:
    """Jobs without their end: an effect, or a dead letter if they kill their process."""
    have = {effect.job for effect in effects}
    return [
        f"{job.job} ({job.consumer}, number {job.number})"
        for job in planned
        if job.job not in (dead if job.killer else have)
    ]


def twice(effects: Iterable[Effect]) -> list[str]:
    """Jobs with more than one effect."""
    return [
        f"{job}: {count} effects" for job, count in Counter(effect.job for effect in effects).items() if count > 1
    ]


def out_of_order(planned: Iterable[Planned], effects: Iterable[Effect], consumer: str) -> list[str]:
    """Effects of an ordered consumer that came before those of an earlier job of the same key."""
    known = {job.job: job for job in planned if job.consumer == consumer}
    newest: dict[str, int] = {}
    found = []
    for effect in sorted(effects, key=lambda effect: effect.place):
        job = known.get(effect.job)
        if job is None:
            continue
        if job.number < newest.get(job.key, -1):
            found.append(f"{job.job}: number {job.number} of {job.key} came after {newest[job.key]}")
        newest[job.key] = max(job.number, newest.get(job.key, -1))
    return found


def charged(planned: Iterable[Planned], started: Iterable[Started]) -> list[str]:
    """Jobs that came to a higher attempt than the failures they were told to have."""
    told = {job.job: job.failures for job in planned}
    highest: dict[str, int] = {}
    for start in started:
        highest[start.job] = max(start.attempt, highest.get(start.job, 1))
    return [f"{job}: attempt {attempt}" for job, attempt in highest.items() if attempt > 1 + told.get(job, 0)]


def intervals(
    started: Iterable[Started], ended: Iterable[Ended], deaths: Mapping[int, float], until: float
) -> list[tuple[Started, float, str]]:
    """Each start with when it was over, and how: an outcome, or "died" with its process, or "running"."""
    open_: dict[tuple[int, str, str, int], list[Started]] = defaultdict(list)
    over: list[tuple[Started, float, str]] = []
    events: list[Started | Ended] = [*started, *ended]
    for event in sorted(events, key=lambda event: (event.at, isinstance(event, Ended))):
        name = (event.pid, event.consumer, event.job, event.attempt)
        if isinstance(event, Started):
            open_[name].append(event)
        else:
            over.append((open_[name].pop(0), event.at, event.outcome))
    for start in [start for starts in open_.values() for start in starts]:
        died = deaths.get(start.pid)
        over.append((start, until, "running") if died is None else (start, max(start.at, died), "died"))
    return sorted(over, key=lambda one: one[0].at)


def above_total(over: Iterable[tuple[Started, float, str]], totals: Mapping[str, int]) -> list[str]:
    """Starts at which a process had all slots of that consumer in use already."""
    groups: dict[tuple[int, str], list[tuple[Started, float]]] = defaultdict(list)
    for start, end, _ in over:
        groups[start.pid, start.consumer].append((start, end))
    found = []
    for (pid, consumer), runs in groups.items():
        ends: list[float] = []
        for start, end in sorted(runs, key=lambda run: run[0].at):
            ends = [other for other in ends if other > start.at]
            if len(ends) >= totals[consumer]:
                found.append(f"{consumer} of process {pid}: {len(ends) + 1} at once at {start.at:.3f}")
            ends.append(end)
    return found


def overlapping(over: Iterable[tuple[Started, float, str]], keys: Mapping[str, str], frozen: set[int]) -> list[str]:
    """Starts of an ordered consumer while another job of the same key ran. What a frozen process held is left out."""
    groups: dict[str, list[tuple[Started, float]]] = defaultdict(list)
    for start, end, _ in over:
        if start.pid not in frozen and start.job in keys:
            groups[keys[start.job]].append((start, end))
    found = []
    for key, runs in groups.items():
        busy_until, before = 0.0, ""
        for start, end in sorted(runs, key=lambda run: run[0].at):
            if start.at < busy_until:
                found.append(f"{start.job} of {key} started while {before} ran")
            if end > busy_until:
                busy_until, before = end, start.job
    return found


def longest_stall(waits: Iterable[Wait], down: Sequence[tuple[float, float]], until: float) -> Stall:
    """The longest stretch with work waiting and no start, without the spans in which a server was kept `down`."""
    events = []
    for wait in waits:
        started = until if wait.started_at is None else wait.started_at
        events += [(min(wait.ready_at, started), 0), (started, 1)]
    waiting, since, worst = 0, 0.0, Stall()
    for at, is_start in sorted(events):
        if not is_start:
            since = at if waiting == 0 else since
            waiting += 1
            continue
        seconds = at - since - overlap(since, at, down)
        worst = max(worst, Stall(seconds, since), key=lambda stall: stall.seconds)
        waiting, since = waiting - 1, at
    return worst


def overlap(begin: float, end: float, spans: Iterable[tuple[float, float]]) -> float:
    """Seconds between begin and end that lie in any of the spans."""
    covered, reached = 0.0, begin
    for start, stop in sorted(spans):
        first, last = max(start, reached), min(stop, end)
        if last > first:
            covered += last - first
            reached = last
    return covered


KILLER = -1
"""Stands for the jobs that kill their process, among the numbers of faults."""


def reruns(
    over: Sequence[tuple[Started, float, str]], strikes: Sequence[Strike], killers: set[str]
) -> dict[int, int]:
    """How many starts repeated a run, by the fault that is to blame; 0 when none can be."""
    before: dict[tuple[str, int], Started] = {}
    found: Counter[int] = Counter()
    killed = {start.pid for start, _, _ in over if start.job in killers}
    for start, _, _ in over:
        earlier = before.get(start.run)
        if earlier is not None:
            number = KILLER if earlier.pid in killed else _to_blame(earlier, start, strikes)
            found[number] += 1
        before[start.run] = start
    return dict(sorted(found.items()))


def _to_blame(earlier: Started, again: Started, strikes: Sequence[Strike]) -> int:
    between = [strike for strike in strikes if strike.at <= again.at and (strike.back_at or again.at) >= earlier.at]
    struck = [strike for strike in between if strike.pid == earlier.pid]
    chosen = struck or between
    return chosen[-1].fault.number if chosen else 0
