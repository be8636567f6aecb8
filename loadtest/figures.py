"""The numbers of `report.json`, computed from the evidence of a run. Pure: no clock, no I/O."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from loadtest import audit, ideal, retries
from loadtest.evidence import FAILED, READ, Ledger
from loadtest.faults import Terms
from loadtest.records import Evidence, Run
from loadtest.scenario import Scenario
from messaging.policy import Backoff

Figures = dict[str, Any]
_LISTED = 20


def compute(
    scenario: Scenario, evidence: Evidence, *, run: str, tenant: str, backoff: Backoff | None = None
) -> Figures:
    """Every figure of the report. A figure that the evidence cannot support is None."""
    backoff = backoff or Backoff()
    ledger = Ledger(evidence, backoff.attempts)
    lost, duplicates = ledger.lost(), ledger.duplicates()
    measured, bounds = _measured(scenario, ledger), _bounds(scenario, evidence.runs)
    perfect = _ideal(scenario, ledger)
    violations = audit.violations(
        evidence.runs, per_sender=scenario.per_sender, total=scenario.total, lend=scenario.lend
    )
    return {
        "run": {
            "id": run,
            "tenant": tenant,
            "lend": scenario.lend,
            "documents": scenario.documents,
            "scenario": scenario.terms(),
        },
        "senders": {sender: _sender(sender, scenario, ledger) for sender in scenario.senders},
        "measured": measured,
        "lost": len(lost),
        "lost_documents": lost[:_LISTED],
        "duplicate_effects": len(duplicates),
        "duplicates": duplicates[:_LISTED],
        "dead_letters": _dead_letters(ledger),
        "retries": retries.figures(ledger, backoff, Terms().retry_after),
        "bounds": bounds,
        "ideal": perfect,
        "ratios": {
            "quiet_done": ratio(measured["quiet_done_s"], bounds["quiet_done_s"]),
            "all_done": ratio(measured["all_done_s"], bounds["all_done_s"]),
            "quiet_to_ideal": ratio(measured["quiet_done_s"], perfect["quiet_done_s"]),
            "all_to_ideal": ratio(measured["all_done_s"], perfect["all_done_s"]),
        },
        "overhead": overhead(ledger),
        "provider": _provider(ledger),
        "slots_busy": slots_busy(evidence.runs, scenario.total),
        "caps": {
            "violations": len(violations),
            "tolerance_s": audit.TOLERANCE,
            "lent_starts": sum(audit.lent_starts(evidence.runs, per_sender=scenario.per_sender).values()),
            "first": [
                f"{violation.rule} at {violation.at:.6f}: {violation.detail}" for violation in violations[:_LISTED]
            ],
        },
        "ready_ms": _ready(scenario, ledger),
        "api_ms": {**_spread(evidence.probe_ms), "probes": len(evidence.probe_ms), "errors": evidence.probe_errors},
    }


def percentile(values: Iterable[float], share: float) -> float | None:
    """The nearest-rank percentile: the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def ratio(measured: float | None, reference: float | None) -> float | None:
    """measured / reference, or None when there is nothing to divide (by)."""
    return None if measured is None or not reference else round(measured / reference, 4)


def slots_busy(runs: Sequence[Run], total: int) -> float | None:
    """The share of slot time in use while there was a backlog.

    The clock starts when at least `total` jobs are ready or running for the first time (before that, the senders have
    not sent enough to fill the slots), and counts the moments at which at least one job is ready and not started.
    None when there never was such a backlog.
    """
    # At one moment an end counts before a start, so that a slot handed on is not counted twice.
    changes = sorted(
        change
        for run in runs
        for change in ((run.ready_at, 2, 1, 0), (run.started_at, 1, -1, 1), (run.finished_at, 0, 0, -1))
    )
    waiting = running = 0
    used = offered = 0.0
    filled, previous = False, 0.0
    for moment, _, waits, runs_now in changes:
        if filled and waiting > 0:
            offered += total * (moment - previous)
            used += running * (moment - previous)
        waiting, running, previous = waiting + waits, running + runs_now, moment
        filled = filled or waiting + running >= total
    return round(used / offered, 4) if offered else None


def overhead(ledger: Ledger) -> float | None:
    """Slot-seconds over the provider's own seconds, for this run's documents."""
    provider = sum(call.seconds for calls in ledger.calls.values() for call in calls)
    return ratio(sum(run.seconds for run in ledger.evidence.runs), provider)


def _sender(sender: str, scenario: Scenario, ledger: Ledger) -> Figures:
    own = [sent for sent in ledger.evidence.sent if sent.sender == sender]
    first_post = min((sent.posted_at for sent in own), default=None)
    statuses = [ledger.status(sent.id) for sent in own if sent.id is not None]
    ends = [(sent, end) for sent in own if sent.id is not None and (end := ledger.done_at(sent.id)) is not None]
    lent = audit.lent_starts(ledger.evidence.runs, per_sender=scenario.per_sender)
    return {
        "sent": len(own),
        "read": sum(status in READ for status in statuses),
        "failed": sum(status in FAILED for status in statuses),
        "dead_letters": sum(sent.id in ledger.dead for sent in own),
        "first_start_s": _first_start(sender, ledger),
        "done_s": _since(first_post, max((end for _, end in ends), default=None)),
        "latency_s": _spread([end - sent.posted_at for sent, end in ends], shares=(0.5, 0.95)),
        "lent_starts": lent[sender],
    }


def _measured(scenario: Scenario, ledger: Ledger) -> Figures:
    """How long the run took: the quiet clock from the first quiet POST, the other from the first POST of all."""

    def took(senders: Sequence[str]) -> float | None:
        own = [sent for sent in ledger.evidence.sent if sent.sender in senders]
        ends = [end for sent in own if sent.id and (end := ledger.done_at(sent.id)) is not None]
        return _since(min((sent.posted_at for sent in own), default=None), max(ends, default=None))

    first_starts = [_first_start(sender, ledger) for sender in scenario.quiet]
    return {
        "quiet_done_s": took(scenario.quiet),
        "all_done_s": took(scenario.senders),
        "quiet_first_start_s": max((start for start in first_starts if start is not None), default=None),
        "longest_job_s": _rounded(max((run.seconds for run in ledger.evidence.runs), default=None)),
        "slot_seconds": round(sum(run.seconds for run in ledger.evidence.runs), 3),
    }


def _first_start(sender: str, ledger: Ledger) -> float | None:
    posts = [sent.posted_at for sent in ledger.evidence.sent if sent.sender == sender]
    starts = [run.started_at for run in ledger.evidence.runs if run.sender == sender]
    return _since(min(posts, default=None), min(starts, default=None))


def _bounds(scenario: Scenario, runs: Sequence[Run]) -> Figures:
    quiet = sum(run.seconds for run in runs if run.sender in scenario.quiet)
    work = sum(run.seconds for run in runs)
    return {
        "quiet_done_s": round(quiet / scenario.quiet_slots, 4) or None,
        "all_done_s": round(work / scenario.total, 4) or None,
    }


def _ideal(scenario: Scenario, ledger: Ledger) -> Figures:
    """The same POSTs and the same slot times, scheduled perfectly. Always with the run's own lending setting."""
    jobs = []
    for document, sent in ledger.sent.items():
        runs = ledger.runs.get(document, ())
        # A retry's wait is the queue's rule, not its cost: the ideal queue waits as long.
        waits = [
            0.0,
            *(max(0.0, later.ready_at - run.finished_at) for run, later in pairwise(runs)),
        ]
        if runs:
            turns = tuple((wait, run.seconds) for wait, run in zip(waits, runs, strict=True))
            jobs.append(ideal.Job(sent.sender, sent.posted_at, turns))
    played = ideal.simulate(jobs, per_sender=scenario.per_sender, total=scenario.total, lend=scenario.lend)

    def took(senders: Sequence[str]) -> float | None:
        arrivals = [job.arrival for job in jobs if job.sender in senders]
        return _since(min(arrivals), ideal.done_at(played, senders)) if arrivals else None

    return {"quiet_done_s": took(scenario.quiet), "all_done_s": took(scenario.senders)}


def _dead_letters(ledger: Ledger) -> Figures:
    expected, attempts = ledger.expected_dead(), ledger.dead_attempts()
    return {
        "total": sum(len(letters) for letters in ledger.dead.values()),
        "expected": len(expected),
        "unexpected": len(set(ledger.dead) - expected),
        "missing": len(expected - set(ledger.dead)),
        "max_attempts": max(attempts.values(), default=0),
        "broken_max_attempts": max(
            (
                count
                for document, count in attempts.items()
                if document in ledger.sent and ledger.sent[document].broken
            ),
            default=0,
        ),
    }


def _provider(ledger: Ledger) -> Figures:
    calls = [call for own in ledger.calls.values() for call in own]
    statuses = sorted({call.status for call in calls})
    return {
        "calls": len(calls),
        "seconds": round(sum(call.seconds for call in calls), 3),
        "statuses": {str(status): sum(call.status == status for call in calls) for status in statuses},
    }


def _ready(scenario: Scenario, ledger: Ledger) -> Figures:
    """From sending to the consumer knowing the job: what API, outbox, relay and Kafka take together.

    Of the quiet senders only: of a long backlog the consumer keeps no more than it will start soon.
    """
    waits = [
        (runs[0].ready_at - ledger.sent[document].posted_at) * 1000
        for document, runs in ledger.runs.items()
        if document in ledger.sent and ledger.sent[document].sender in scenario.quiet
    ]
    return _spread(waits)


def _spread(values: Sequence[float], shares: Sequence[float] = (0.5, 0.99)) -> Figures:
    figures: Figures = {f"p{share * 100:.0f}": _rounded(percentile(values, share)) for share in shares}
    return {**figures, "max": _rounded(max(values, default=None))}


def _since(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(end - begin, 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
