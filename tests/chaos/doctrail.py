"""What became of the documents of a run, from four places: the API's answers, the database, Kafka, the provider."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

from loadtest import store, trail
from loadtest.audit import violations
from loadtest.evidence import FAILED, READ, Ledger
from loadtest.provider import ProviderProcess
from loadtest.records import Evidence, Run, Sent
from messaging.policy import Policy
from schemas import topics
from schemas.events import DocumentFailed, DocumentRead, DocumentReadingRequested
from tests.chaos.audit import Findings, Wait
from tests.chaos.records import Strike

READER = "reader"
SETTLE_SECONDS = 15.0
QUIET_SECONDS = 12.0
"""So close to a fault the guarantee is not judged: what the dead had running is not in the records."""

_WORKERS = """
select worker, coalesce(subject, ''), extract(epoch from started_at)::float8
from ledger_attempts where tenant = %s and consumer = %s
"""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the records are."""

    database: str
    kafka: str
    tenant: str
    provider: ProviderProcess


@dataclass(frozen=True, slots=True)
class Trail:
    """The records, and which worker each run was on (by document and start)."""

    evidence: Evidence
    worker_of: Mapping[tuple[str, float], int]


async def find(
    sources: Sources,
    sent: Sequence[Sent],
    strikes: Sequence[Strike],
    until: float,
    *,
    jobs: int,
    workers: int,
    repeats: int,
    folder: Path,
) -> Findings:
    """The audit, once nothing is missing any more, or after `SETTLE_SECONDS`. The evidence is kept in `folder`."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        found = await _collect(sources, sent)
        ledger = Ledger(found.evidence)
        missing = _lost(ledger, jobs)
        if not missing or time.monotonic() >= deadline:
            break
        await asyncio.sleep(0.5)
    (folder / "evidence.json").write_text(json.dumps(asdict(found.evidence)), "utf-8")
    policy = topics.load().subscription(DocumentReadingRequested.TOPIC, READER).policy
    again = _reruns(ledger, strikes)
    latencies = sorted(one.accepted_at - one.posted_at for one in sent if one.accepted_at is not None)
    findings = Findings(
        load="documents",
        jobs=jobs,
        ended=sum(document.status in READ | FAILED for document in found.evidence.stored),
        lost=missing,
        twice=_twice(ledger),
        innocent_dead=_innocent(ledger),
        charged=[f"{one.id}: attempt {one.attempts}" for one in found.evidence.stored if one.attempts > 1],
        above_caps=_above_caps(found, strikes, policy),
        reruns=again,
        slots={strike.fault.number: policy.total * workers for strike in strikes},
        figures={
            "repeated_posts": repeats,
            "longest_post_seconds": round(latencies[-1], 2) if latencies else 0.0,
            "provider_calls": len(found.evidence.calls),
        },
    )
    findings.stall({READER: _waits(ledger, strikes)}, strikes, until)
    return findings


async def _collect(sources: Sources, sent: Sequence[Sent]) -> Trail:
    letters = topics.load().subscription(DocumentReadingRequested.TOPIC, READER).dead_letter_topic
    since = min((one.posted_at for one in sent), default=time.time()) - 5.0
    seen = await asyncio.to_thread(trail.read, sources.kafka, [DocumentRead.TOPIC, letters], sources.tenant, since)
    async with await psycopg.AsyncConnection.connect(sources.database, autocommit=True) as conn:
        stored = await store.documents(conn, sources.tenant)
        runs = await store.runs(conn, sources.tenant, READER)
        rows = await (await conn.execute(_WORKERS, (sources.tenant, READER))).fetchall()
    evidence = Evidence(
        sent=list(sent),
        stored=stored,
        runs=runs,
        calls=await sources.provider.records(),
        events=[record for record in seen if record.topic != letters],
        dead_letters=[record for record in seen if record.topic == letters],
        probe_ms=[],
    )
    return Trail(evidence, {(document, started): worker for worker, document, started in rows})


def _lost(ledger: Ledger, jobs: int) -> list[str]:
    found = [f"{document}: {missing}" for document in ledger.sent if (missing := _missing(ledger, document))]
    if len(ledger.sent) < jobs:
        found.append(f"{jobs - len(ledger.sent)} documents were never accepted")
    return found


def _missing(ledger: Ledger, document: str) -> str | None:
    status = ledger.status(document)
    if status not in READ | FAILED:
        return "the service does not know it" if status is None else f"still {status}"
    said = DocumentFailed.TYPE if status in FAILED else DocumentRead.TYPE
    if not ledger.events.get((document, said)):
        return f"{status}, but no {said} went out"
    if status in FAILED and document not in ledger.dead:
        return "failed, but not among the dead letters"
    return None


def _twice(ledger: Ledger) -> list[str]:
    found = [
        f"{document}: {count} different {kind}" for (document, kind), count in ledger.events.items() if count > 1
    ]
    for document in ledger.sent:
        if ledger.events.get((document, DocumentRead.TYPE)) and ledger.events.get((document, DocumentFailed.TYPE)):
            found.append(f"{document}: told both as read and as failed")
        if len(ledger.dead.get(document, ())) > 1:
            found.append(f"{document}: {len(ledger.dead[document])} dead letters")
    extra = [document.id for document in ledger.evidence.stored if document.id not in ledger.sent]
    accepted = [one.id for one in ledger.evidence.sent]
    twice = {document for document in accepted if accepted.count(document) > 1}
    return found + [f"{one}: a second document for one idempotency key" for one in [*extra, *sorted(map(str, twice))]]


def _innocent(ledger: Ledger) -> list[str]:
    broken = {document for document, sent in ledger.sent.items() if sent.broken}
    failed = {document.id for document in ledger.evidence.stored if document.status in FAILED}
    spared = broken - failed
    return [f"{document}: dead" for document in sorted((failed | set(ledger.dead)) - broken)] + [
        f"{document}: broken, but not dead" for document in sorted(spared)
    ]


def _above_caps(found: Trail, strikes: Sequence[Strike], policy: Policy) -> list[str]:
    groups: dict[int, list[Run]] = defaultdict(list)
    for run in found.evidence.runs:
        groups[found.worker_of[run.document, run.started_at]].append(run)
    quiet = [(strike.at - QUIET_SECONDS, (strike.back_at or strike.at) + QUIET_SECONDS) for strike in strikes]
    return [
        f"{broken.rule}: {broken.document} of {broken.sender}: {broken.detail}"
        for runs in groups.values()
        for broken in violations(runs, per_sender=policy.per_key, total=policy.total, lend=policy.lend)
        if broken.rule == "over_total" or not any(begin <= broken.at <= end for begin, end in quiet)
    ]


def _waits(ledger: Ledger, strikes: Sequence[Strike]) -> list[Wait]:
    """From accepted to the provider's first call (or the record of the run), and again after a fault."""
    waits = []
    for document, sent in ledger.sent.items():
        starts = _starts(ledger, document)
        accepted = sent.accepted_at or sent.posted_at
        waits.append(Wait(accepted, min(starts)) if starts else Wait(accepted, None))
        for start in sorted(starts)[1:]:
            struck = [strike.at for strike in strikes if strike.at <= start]
            if struck:
                waits.append(Wait(struck[-1], start))
    return waits


def _starts(ledger: Ledger, document: str) -> list[float]:
    """When reading began, each time: the provider is asked for the fields first. Not every document comes so far."""
    calls = [call.started_at for call in ledger.calls.get(document, ()) if call.call == 1]
    return calls or [run.started_at for run in ledger.runs.get(document, ())]


def _reruns(ledger: Ledger, strikes: Sequence[Strike]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for document in ledger.sent:
        for start in sorted(_starts(ledger, document))[1:]:
            before = [strike.fault.number for strike in strikes if strike.at <= start]
            found[before[-1] if before else 0] += 1
    return dict(sorted(found.items()))
