"""Pure: what the records of filed requests amount to. Lost, told twice, out of order, refused, counted wrongly."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from tests.chaos.filing import Asked


@dataclass(frozen=True, slots=True)
class Row:
    """A request as the gateway stored it."""

    id: str
    key: str
    team: str


@dataclass(frozen=True, slots=True)
class Out:
    """One record of the events' topic, in the order of its partition."""

    key: str
    event: str
    request: str


@dataclass(frozen=True, slots=True)
class Told:
    """A notification. `seq` is its number in the tenant's feed; `at` when it was written."""

    key: str
    event: str
    request: str
    team: str
    seq: int
    at: float


@dataclass(frozen=True, slots=True)
class Trail:
    """All records of a run.

    counted  by key, how many events there were as analytics says; None when it does not answer
    dead     dead letters of any consumer, and what Kafka refused
    charged  events whose telling failed
    tellers  how many processes told the teams
    """

    asked: Sequence[Asked]
    rows: Sequence[Row]
    out: Sequence[Out]
    told: Sequence[Told]
    counted: Mapping[str, int] | None
    dead: Sequence[str] = field(default_factory=list)
    charged: Sequence[str] = field(default_factory=list)
    tellers: int = 1

    @property
    def repeats(self) -> int:
        """How many records of the topic came again."""
        return len(self.out) - len({out.event for out in self.out})


def lost(trail: Trail, jobs: int) -> list[str]:
    """Requests that are not everywhere they should be."""
    stored = {row.id for row in trail.rows}
    out = {record.request for record in trail.out}
    told = {one.request for one in trail.told}
    found = [f"{jobs - len(trail.asked)} requests were never answered 201"] if len(trail.asked) < jobs else []
    found += [f"{asked.id}: answered 201, but not stored" for asked in trail.asked if asked.id not in stored]
    for row in trail.rows:
        if row.id not in out:
            found.append(f"{row.id}: its event did not go out")
        elif row.id not in told:
            found.append(f"{row.id}: its team was not told")
    return found + uncounted(trail)


def uncounted(trail: Trail) -> list[str]:
    """Senders of whose records analytics counted fewer than there are: it counts each, one that came again too."""
    if trail.counted is None:
        return ["analytics does not answer"]
    there = Counter(out.key for out in trail.out)
    return [
        f"{key}: analytics counted {trail.counted.get(key, 0)} of {number} records"
        for key, number in sorted(there.items())
        if trail.counted.get(key, 0) < number
    ]


def twice(trail: Trail) -> list[str]:
    """What there is more of than was asked for."""
    answers = Counter(asked.id for asked in trail.asked)
    teams = {row.id: row.team for row in trail.rows}
    events: dict[str, set[str]] = defaultdict(set)
    for out in trail.out:
        events[out.request].add(out.event)
    told = Counter(one.request for one in trail.told)
    records = Counter(out.key for out in trail.out)
    return [
        *(f"{request}: the answer to {count} requests" for request, count in answers.items() if count > 1),
        *(f"{request}: stored, and nobody's answer" for request in teams if request not in answers),
        *(f"{request}: {len(ids)} different events" for request, ids in events.items() if len(ids) > 1),
        *(f"{request}: an event, but not stored" for request in events if request not in teams),
        *(f"{request}: told {count} times" for request, count in told.items() if count > 1),
        *(
            f"{one.request}: told {one.team}"
            for one in trail.told
            if teams.get(one.request) != one.team or one.event not in events[one.request]
        ),
        *(
            f"{key}: analytics counted {count} of {records[key]} records"
            for key, count in (trail.counted or {}).items()
            if count > records[key]
        ),
    ]


def out_of_order(trail: Trail) -> list[str]:
    """Senders whose events, or whose teams' notifications, did not come in the order of filing."""
    filed, came, told = (defaultdict[str, list[str]](list) for _ in range(3))
    for asked in trail.asked:
        filed[asked.key].append(asked.id)
    for out in trail.out:
        came[out.key].append(out.request)
    for one in sorted(trail.told, key=lambda one: one.seq):
        told[one.key].append(one.request)
    return [
        f"{key}: {wrong} {what}"
        for what, arrived in (("on the topic", came), ("among the notifications", told))
        for key in sorted(filed.keys() | arrived.keys())
        if (wrong := misplaced(filed[key], arrived[key])) is not None
    ]


def misplaced(filed: Sequence[str], came: Iterable[str]) -> str | None:
    """The first request that did not come in its turn. Later repeats of one are known, and what is lost is no matter
    of order."""
    firsts = dict.fromkeys(came)
    due = (request for request in filed if request in firsts)
    return next((first for first, wanted in zip_longest(firsts, due) if first != wanted), None)


def refused(asked: Iterable[Asked], excused: Sequence[tuple[float, float]]) -> list[str]:
    """Answers that were no 201, but for the 503s of those spans, in which Postgres was away."""
    return [
        f"request {one.number}: {refusal}"
        for one in asked
        for refusal in one.refusals
        if not (refusal.what == "503" and any(begin <= refusal.at <= end for begin, end in excused))
    ]
