"""The audit of retries: it accepts full jitter and free waits, and sees what is not."""

import random
from dataclasses import replace
from typing import Any

import pytest

from loadtest import promises, retries
from loadtest.evidence import Ledger
from loadtest.records import Evidence, ProviderCall, Run, Seen, Sent
from loadtest.scenario import Scenario
from messaging.policy import Backoff

T = 1_000.0
BACKOFF = Backoff(attempts=4, base=1.0, cap=60.0)
FAULTY = Scenario(error_rate=0.2)
REST: dict[str, Any] = {
    "lost": 0,
    "duplicate_effects": 0,
    "caps": {"violations": 0},
    "dead_letters": {"total": 1, "expected": 1, "unexpected": 0, "missing": 0},
    "api_ms": {},
}


def one(number: int, waits: list[float], last: str = "done") -> list[Run]:
    """A document that failed once before each wait, each run a tenth of a second long."""
    runs, ready = [], T + number
    for attempt, wait in enumerate([*waits, None], start=1):
        outcome: Any = last if wait is None else "retry"
        runs.append(Run(f"d{number}", "ana", attempt, ready, ready, ready + 0.1, outcome))
        ready += 0.1 + (wait or 0.0)
    return runs


def ledger(runs: list[Run], calls: list[ProviderCall] | None = None, dead: tuple[str, ...] = ()) -> Ledger:
    names = sorted({run.document for run in runs})
    sent = [Sent(n, "ana", f"INV-{name}", "", False, name, T, T) for n, name in enumerate(names)]
    letters = [Seen("dlq", f"job-{name}", "document.reading_requested", name) for name in dead]
    return Ledger(Evidence(sent, [], runs, calls or [], [], letters, []), BACKOFF.attempts)


def found(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(retries.figures(ledger(*args, **kwargs), BACKOFF, retry_after=1.0))


def broken(figures: dict[str, Any]) -> list[str]:
    return [p.name for p in promises.check(FAULTY, {**REST, "retries": figures}) if not p.held]


def jittered(rng: random.Random, low: float = 0.0, high: float = 1.0) -> list[Run]:
    return [
        run for number in range(100) for run in one(number, [rng.uniform(low, high), rng.uniform(2 * low, 2 * high)])
    ]


def test_full_jitter_is_recognised() -> None:
    figures = found(jittered(random.Random(5)))
    assert (figures["waits"], figures["retried_runs"]) == (200, 200)
    assert figures["jitter_distance"] <= figures["jitter_limit"] == pytest.approx(0.1379, abs=1e-4)
    assert broken(figures) == []


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.0), (1.0, 1.0), (0.0, 0.6), (0.0, 1.5)])
def test_equal_jitter_no_jitter_and_wrong_ends_are_seen(low: float, high: float) -> None:
    assert broken(found(jittered(random.Random(5), low, high))) == ["retries.jitter_distance"]


def test_a_wait_the_provider_asked_for_is_free_and_holds_everybody() -> None:
    told = Run("d1", "ana", 1, T, T, T + 0.1, "released")
    again = replace(told, ready_at=T, started_at=T + 1.2, finished_at=T + 2.0, outcome="done")
    calls = [ProviderCall("INV-d1", 1, 1, T, T + 0.1, 429)]
    kept = found([told, again], calls)
    assert (kept["uncharged_runs"], kept["charged_waits"], kept["early_starts"]) == (1, 0, 0)
    assert broken(kept) == []
    charged = found([told, replace(again, attempt=2)], calls)
    assert broken(charged) == ["retries.charged_waits"]
    other = Run("d2", "ben", 1, T, T + 0.5, T + 0.6, "done")
    assert broken(found([told, again, other], calls)) == ["retries.early_starts"]


def test_what_may_pass_dies_of_the_fourth_attempt_and_of_no_other() -> None:
    assert broken(found(one(1, [0.5, 1.0, 2.0], "dead"), dead=("d1",))) == []
    early = found(one(1, [0.5, 1.0, 2.0], "dead") + one(2, [0.5], "dead"), dead=("d1", "d2"))
    assert early["dead_attempts"] == {"fewest": 2, "most": 4}
    assert broken(early) == ["retries.dead_attempts.fewest"]


def test_a_run_without_failures_has_nothing_to_show() -> None:
    figures = found(one(1, []))
    assert (figures["waits"], figures["jitter_distance"], figures["jitter_limit"]) == (0, None, None)
