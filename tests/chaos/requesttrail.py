"""What became of the requests of a run, from five places: the answers, both databases, Kafka, and analytics."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg

from messaging.message import headers_to_dict
from messaging.policy import Subscription
from schemas import topics
from schemas.events import RequestCreated
from services.notifications.notices import REQUEST_CREATED
from tests.chaos import commits, requestaudit
from tests.chaos.audit import Findings, Wait, worst
from tests.chaos.filing import PATH, Filer
from tests.chaos.insisting import TOKEN_SECONDS
from tests.chaos.records import SERVERS, Strike
from tests.chaos.requestaudit import Out, Row, Told, Trail
from tests.messaging.harness import read_all
from web import tokens

TELLER = "notifications"
SETTLE_SECONDS = 60.0
"""How long after the last notification analytics may take to have counted everything."""

POOL_SECONDS = 5.0
"""A pool finds out so late that Postgres is back."""

_ROWS = "select id::text, tenant || ':' || sender, team from requests where tenant = any(%s) order by id"
_REFUSED = "select id::text from outbox_refused where split_part(key, ':', 1) = any(%s)"
_TOLD = """
select tenant || ':' || about, event_id, replace(href, %s, ''), audience, seq, extract(epoch from created_at)::float8
from notifications where tenant = any(%s) and kind = %s order by tenant, seq
"""
_CHARGED = """
select l.message_id || ': ' || l.failures || ' failures'
from ledger l where l.consumer = %s and l.failures > 0 and l.message_id = any(%s)
"""


_TELLERS = "select count(distinct worker) from ledger where consumer = %s and message_id = any(%s)"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the records are, and whose. `gateway` is its address, the databases are conninfos."""

    gateway: str
    secret: str
    gateway_database: str
    notifications_database: str
    kafka: str
    tenants: Sequence[str]


async def find(sources: Sources, filer: Filer, strikes: Sequence[Strike], until: float, *, folder: Path) -> Findings:
    """The audit, once nothing is missing any more, or after `SETTLE_SECONDS`. The evidence is kept in `folder`."""
    begun, jobs = time.monotonic(), filer.gate.jobs
    while True:
        trail = await _collect(sources, filer)
        missing = requestaudit.lost(trail, jobs)
        if not missing or time.monotonic() - begun >= SETTLE_SECONDS:
            break
        await asyncio.sleep(0.5)
    settled = time.monotonic() - begun
    (folder / "evidence.json").write_text(json.dumps(asdict(trail)), "utf-8")
    findings = Findings(
        load="requests",
        jobs=jobs,
        ended=len({one.request for one in trail.told}),
        lost=missing,
        twice=requestaudit.twice(trail),
        innocent_dead=list(trail.dead),
        charged=list(trail.charged),
        out_of_order=requestaudit.out_of_order(trail),
        uncommitted=await asyncio.to_thread(_uncommitted, sources.kafka),
        refused=requestaudit.refused(trail.asked, _postgres_away(strikes)),
        figures=_figures(trail, strikes)
        | {"answers_to_a_repeat": filer.replayed, "analytics_whole_after_seconds": round(settled, 2)},
    )
    # What is known already is told without the registry: its absence is no excuse.
    excuses = [strike for strike in strikes if SERVERS.get(strike.fault.kind) != "registry"]
    findings.stall(_waits(trail), excuses, until)
    findings.stalls = {TELLER: worst(findings.stalls)}
    findings.in_all = {TELLER: worst(findings.in_all)}
    return findings


def teller() -> Subscription:
    """The consumer that tells the teams."""
    return topics.load().subscription(RequestCreated.TOPIC, TELLER)


async def _collect(sources: Sources, filer: Filer) -> Trail:
    tenants, known = list(sources.tenants), topics.load()
    out = [
        Out(key, event, request)
        for key, event, request in await asyncio.to_thread(
            _records, sources.kafka, RequestCreated.TOPIC, known[RequestCreated.TOPIC].partitions, tenants
        )
    ]
    dead = [
        f"{event} on {letters.name}"
        for letters in known.dead_letter_topics()
        for _, event, _ in await asyncio.to_thread(
            _records, sources.kafka, letters.name, known[letters.source].partitions, tenants
        )
    ]
    rows = await _rows(sources.gateway_database, _ROWS, tenants)
    dead += [f"{event} refused by Kafka" for (event,) in await _rows(sources.gateway_database, _REFUSED, tenants)]
    told = await _rows(sources.notifications_database, _TOLD, f"{PATH}/", tenants, REQUEST_CREATED)
    consumer = teller().name
    events = [record.event for record in out]
    charged = await _rows(sources.notifications_database, _CHARGED, consumer, events)
    ((tellers,),) = await _rows(sources.notifications_database, _TELLERS, consumer, events)
    return Trail(
        asked=list(filer.asked),
        rows=[Row(*row) for row in rows],
        out=out,
        told=[Told(*row) for row in told],
        counted=await _counted(sources),
        dead=dead,
        charged=[line for (line,) in charged],
        tellers=int(tellers),
    )


async def _rows(database: str, query: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
        return await (await conn.execute(query, parameters)).fetchall()


def _records(kafka: str, topic: str, partitions: int, tenants: Sequence[str]) -> list[tuple[str, str, str]]:
    """Key, event id and subject of every record of these tenants, in the order of its partition. Blocks."""
    found = []
    for record in read_all(kafka, topic, partitions):
        raw = record.key() or b""
        key = raw if isinstance(raw, str) else raw.decode(errors="replace")
        if key.partition(":")[0] in tenants:
            headers = headers_to_dict(record.headers())
            found.append((key, headers["ce_id"].decode(), headers["ce_subject"].decode()))
    return found


async def _counted(sources: Sources) -> dict[str, int] | None:
    """By key, as analytics answers through the gateway."""
    found: dict[str, int] = {}
    async with httpx.AsyncClient(base_url=sources.gateway, timeout=10.0, trust_env=False) as client:
        for tenant in sources.tenants:
            token = tokens.issue(sources.secret, "auditor", tenant, ["viewer"], TOKEN_SECONDS)
            answer = await client.get(
                "/api/analytics/events",
                params={"type": RequestCreated.TYPE},
                headers={"Authorization": f"Bearer {token}"},
            )
            if answer.status_code != httpx.codes.OK:
                return None
            found |= {f"{tenant}:{one['sender']}": int(one["count"]) for one in answer.json()["senders"]}
    return found


def _uncommitted(kafka: str) -> list[str]:
    known = topics.load()
    topic = known[RequestCreated.TOPIC]
    groups: dict[str, set[str]] = {}
    for consumer in topic.consumers:
        sub = known.subscription(RequestCreated.TOPIC, consumer)
        groups.setdefault(sub.group, set()).update((sub.topic, sub.retry_topic))
    return commits.uncommitted(kafka, groups, topic.partitions)


def _waits(trail: Trail) -> dict[str, list[Wait]]:
    """By sender: a stall of some must not hide behind what goes on for the others."""
    told = {one.request: one.at for one in trail.told}
    waits: dict[str, list[Wait]] = defaultdict(list)
    for asked in trail.asked:
        waits[asked.key].append(Wait(asked.at, told.get(asked.id)))
    return waits


def _postgres_away(strikes: Sequence[Strike]) -> list[tuple[float, float]]:
    spans = [strike.down for strike in strikes if SERVERS.get(strike.fault.kind) == "postgres"]
    return [(begin, end + POOL_SECONDS) for begin, end in filter(None, spans)]


def _figures(trail: Trail, strikes: Sequence[Strike]) -> dict[str, float]:
    """`_during`: while what was struck was not back."""
    seconds = sorted(one.at - one.posted_at for one in trail.asked)
    away = [(strike.at, strike.back_at or strike.released_at) for strike in strikes]
    told = {one.request: one.at for one in trail.told}
    during = [one for one in trail.asked if any(begin <= one.posted_at <= end for begin, end in away)]
    late = [told[one.id] - end for one in during if one.id in told for _, end in away[-1:]]
    return {
        "repeats_on_the_topic": trail.repeats,
        "counted_repeats": sum((trail.counted or {}).values()) - len({out.event for out in trail.out}),
        "tellers": trail.tellers,
        "refusals": sum(len(one.refusals) for one in trail.asked),
        "p99_answer_seconds": round(seconds[len(seconds) * 99 // 100], 3) if seconds else 0.0,
        "longest_answer_seconds": round(max(seconds, default=0.0), 3),
        "answered_during": len(during),
        "longest_answer_during_seconds": round(max((one.at - one.posted_at for one in during), default=0.0), 3),
        "told_during": sum(any(begin <= at <= end for begin, end in away) for at in told.values()),
        "all_of_those_told_seconds_after": round(max(0.0, *late), 2) if late else 0.0,
    }
