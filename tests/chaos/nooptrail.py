"""What became of the no-op jobs of a run: from the workers' logs, the database, the dead letters, the offsets."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from messaging.message import headers_to_dict
from messaging.policy import Subscription
from messaging.runs import MAX_STRIKES
from tests.chaos import audit, commits
from tests.chaos.audit import Findings, Wait
from tests.chaos.joblog import JobLogs
from tests.chaos.records import Effect, Ended, Planned, Started, Strike
from tests.messaging.harness import read_all

_EPOCH = "extract(epoch from at)::float8"
_JOBS = f"select job, consumer, key, number, {_EPOCH}, killer, failures from jobs"
_EFFECTS = f"select job, place, {_EPOCH} from effects"
_ENDS = "select job from ends"

Over = Sequence[tuple[Started, float, str]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the records are. `workers`: the pid of each worker now, by name. `folder`: where they are kept."""

    database: str
    kafka: str
    subscriptions: Sequence[Subscription]
    partitions: int
    workers: Mapping[str, int | None]
    folder: Path


def find(sources: Sources, logs: JobLogs, jobs: int, strikes: Sequence[Strike], until: float) -> Findings:
    """The audit. Blocks; waits for the last commits. What the database said is kept in the folder of `sources`."""
    groups = {sub.group: (sub.topic, sub.retry_topic) for sub in sources.subscriptions}
    uncommitted = commits.uncommitted(sources.kafka, groups, sources.partitions)
    with psycopg.connect(sources.database, autocommit=True) as conn:
        planned = [Planned(*row) for row in _rows(conn, _JOBS)]
        effects = [Effect(*row) for row in _rows(conn, _EFFECTS)]
        ends = {job for (job,) in _rows(conn, _ENDS)}
    letters = _dead_letters(sources)
    kept = {"jobs": list(map(asdict, planned)), "effects": list(map(asdict, effects)), "dead": sorted(ends | letters)}
    (sources.folder / "evidence.json").write_text(json.dumps(kept), "utf-8")
    over = audit.intervals(logs.started, logs.ended, _deaths(logs, strikes, set(sources.workers.values())), until)
    slots = sum(sub.policy.total for sub in sources.subscriptions)
    ordered = {sub.consumer for sub in sources.subscriptions if sub.policy.ordered}
    keys = {job.job: job.key for job in planned if job.consumer in ordered}
    frozen = {strike.pid for strike in strikes if strike.fault.kind == "freeze"}
    killers = {job.job for job in planned if job.killer}
    have_effect = {effect.job for effect in effects}
    waits = _waits(planned, over, have_effect | ends)
    found = Findings(
        load="no-op jobs",
        jobs=jobs,
        ended=len(have_effect | ends),
        lost=audit.lost(planned, effects, ends & letters)
        + [f"number {number}: never handed in" for number in range(len(planned), jobs)],
        twice=audit.twice(effects) + [f"{job}: an effect and a dead letter" for job in sorted(have_effect & ends)],
        innocent_dead=sorted((ends | letters) - killers),
        charged=audit.charged(planned, logs.started),
        above_caps=audit.above_total(over, {sub.consumer: sub.policy.total for sub in sources.subscriptions})
        + audit.overlapping(over, keys, frozen),
        out_of_order=[line for name in sorted(ordered) for line in audit.out_of_order(planned, effects, name)],
        uncommitted=uncommitted,
        reruns=audit.reruns(over, strikes, killers),
        slots={s.fault.number: slots * (1 if s.victim in sources.workers else len(sources.workers)) for s in strikes}
        | {audit.KILLER: slots * MAX_STRIKES * len(killers)},
        figures={
            "starts": len(logs.started),
            "longest_wait_of_a_job": round(max(_seconds(waits, [], until)), 2),
            "longest_wait_while_servers_answered": round(
                max(_seconds(waits, [strike.down for strike in strikes if strike.down], until)), 2
            ),
        },
    )
    found.stall(waits, strikes, until)
    return found


def _rows(conn: "psycopg.Connection[tuple[Any, ...]]", query: str) -> list[tuple[Any, ...]]:
    return conn.execute(query.encode()).fetchall()


def _deaths(logs: JobLogs, strikes: Iterable[Strike], alive: set[int | None]) -> dict[int, float]:
    """When each process that is gone died: when it was killed, or after its last line."""
    deaths: dict[int, float] = {}
    events: list[Started | Ended] = [*logs.started, *logs.ended]
    for event in events:
        if event.pid not in alive:
            deaths[event.pid] = max(event.at, deaths.get(event.pid, 0.0))
    return deaths | {s.pid: s.at for s in strikes if s.pid in deaths and s.fault.kind == "worker"}


def _waits(planned: Sequence[Planned], over: Over, settled: set[str]) -> dict[str, list[Wait]]:
    """By consumer: from when each job was ready, the first time and each time again, to when it started."""
    ready = {job.job: job.at for job in planned}
    waits: dict[str, list[Wait]] = defaultdict(list)
    for start, end, outcome in over:
        since = ready.pop(start.job, start.at)
        waits[start.consumer].append(Wait(min(since, start.at), start.at))
        if outcome in ("died", "outage", "failed"):
            # Ready again, unless it had its effect and only the answer was lost: then nothing follows.
            ready[start.job] = end
    consumers = {job.job: job.consumer for job in planned}
    for job, since in ready.items():
        if job not in settled:
            waits[consumers[job]].append(Wait(since, None))
    return waits


def _seconds(
    waits: Mapping[str, Sequence[Wait]], down: Sequence[tuple[float, float]], until: float
) -> Iterable[float]:
    """How long each job waited, without the time in which a server was down."""
    for wait in (wait for own in waits.values() for wait in own):
        end = until if wait.started_at is None else wait.started_at
        yield end - wait.ready_at - audit.overlap(wait.ready_at, end, down)


def _dead_letters(sources: Sources) -> set[str]:
    return {
        headers_to_dict(letter.headers())["ce_id"].decode()
        for sub in sources.subscriptions
        for letter in read_all(sources.kafka, sub.dead_letter_topic, sources.partitions)
    }
