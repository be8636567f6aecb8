"""The figures of a small run whose every number can be worked out by hand."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from loadtest import figures, promises
from loadtest.records import Evidence, ProviderCall, Run, Seen, Sent, Stored
from loadtest.scenario import Scenario

SCENARIO = Scenario(senders=("noisy", "ana"), counts=(3, 2), broken=1, per_sender=1, total=2)
T = 1_000.0


def sent(index: int, sender: str, posted: float, *, broken: bool = False) -> Sent:
    return Sent(index, sender, f"INV-{index}", f"sha-{index}", broken, f"d{index}", T + posted, T + posted + 0.01)


def run(index: int, sender: str, ready: float, start: float, stop: float, outcome: Any = "done") -> Run:
    return Run(f"d{index}", sender, 1, T + ready, T + start, T + stop, outcome)


def read(index: int) -> Seen:
    return Seen("documents.events", f"event-{index}", "document.read", f"d{index}")


LETTER = Seen("documents.jobs.reader.dlq", "job-2", "document.reading_requested", "d2")
EVIDENCE = Evidence(
    sent=[
        sent(0, "noisy", 0.0),
        sent(1, "noisy", 0.1),
        sent(2, "noisy", 0.2, broken=True),
        sent(3, "ana", 1.0),
        sent(4, "ana", 1.1),
    ],
    stored=[
        Stored("d0", "noisy", "approved", 1),
        Stored("d1", "noisy", "waiting_for_review", 1),
        Stored("d2", "noisy", "failed", 1, "cannot be read"),
        Stored("d3", "ana", "approved", 1),
        Stored("d4", "ana", "approved", 1),
    ],
    # Two slots: noisy takes both (one lent), the broken one follows in a moment, ana's two run one after another.
    runs=[
        run(0, "noisy", 0.02, 0.1, 2.1),
        run(1, "noisy", 0.12, 0.2, 3.2),
        run(3, "ana", 1.02, 2.1, 4.1),
        run(2, "noisy", 0.22, 3.2, 3.3, "dead"),
        run(4, "ana", 1.12, 4.1, 6.1),
    ],
    calls=[
        ProviderCall("INV-0", 1, 1, T + 0.1, T + 1.5, 200),
        ProviderCall("INV-0", 2, 1, T + 1.5, T + 2.1, 200),
        ProviderCall("INV-1", 1, 1, T + 0.2, T + 3.0, 200),
        ProviderCall("sha-2", 1, 1, T + 3.2, T + 3.25, 400),
        ProviderCall("INV-3", 1, 1, T + 2.1, T + 4.0, 200),
        ProviderCall("INV-4", 1, 1, T + 4.1, T + 6.0, 200),
        ProviderCall("somebody else's", 1, 1, T, T + 100, 200),
    ],
    events=[read(0), read(1), read(3), read(4), Seen("documents.events", "event-2", "document.failed", "d2")],
    dead_letters=[LETTER],
    probe_ms=[1.0] * 98 + [5.0, 30.0],
)


def compute(evidence: Evidence = EVIDENCE, scenario: Scenario = SCENARIO) -> figures.Figures:
    return figures.compute(scenario, evidence, run="r", tenant="load-r")


def test_every_key_of_the_report_is_there() -> None:
    found = compute()
    assert {
        "run", "senders", "lost", "duplicate_effects", "dead_letters", "bounds", "ideal", "ratios", "overhead",
        "slots_busy", "caps", "api_ms",
    } <= set(found)  # fmt: skip
    assert {"total", "expected", "unexpected", "max_attempts"} <= set(found["dead_letters"])
    assert {"quiet_done", "all_done", "quiet_to_ideal"} <= set(found["ratios"])
    for own in found["senders"].values():
        assert {"sent", "read", "failed", "dead_letters", "first_start_s", "done_s", "latency_s"} <= set(own)
        assert {"p50", "p95", "max"} <= set(own["latency_s"])


def test_counts_and_times_of_each_sender() -> None:
    noisy, ana = compute()["senders"]["noisy"], compute()["senders"]["ana"]
    assert (noisy["sent"], noisy["read"], noisy["failed"], noisy["dead_letters"]) == (3, 2, 1, 1)
    assert (ana["sent"], ana["read"], ana["failed"], ana["dead_letters"]) == (2, 2, 0, 0)
    assert (noisy["first_start_s"], noisy["done_s"]) == (0.1, 3.3)
    assert (ana["first_start_s"], ana["done_s"]) == (1.1, 5.1)
    assert noisy["latency_s"] == {"p50": 3.1, "p95": 3.1, "max": 3.1}
    assert ana["latency_s"] == {"p50": 3.1, "p95": 5.0, "max": 5.0}
    assert (noisy["lent_starts"], ana["lent_starts"]) == (1, 0)


def test_bounds_ideal_and_ratios() -> None:
    found = compute()
    # ana's 4 s on her one guaranteed slot; 9.1 s of work in all on two.
    assert found["bounds"] == {"quiet_done_s": 4.0, "all_done_s": 4.55}
    # Ideal: noisy 0-2 and (lent) 0.1-3.1; ana's first at 2, broken 3.1-3.2, ana's second (lent) at 3.2.
    assert found["ideal"] == {"quiet_done_s": pytest.approx(4.2), "all_done_s": pytest.approx(5.2)}
    assert found["measured"]["quiet_done_s"] == 5.1
    assert found["measured"]["all_done_s"] == 6.1
    assert found["ratios"]["quiet_done"] == pytest.approx(5.1 / 4.0, abs=1e-4)
    assert found["ratios"]["all_done"] == pytest.approx(6.1 / 4.55, abs=1e-4)
    assert found["ratios"]["quiet_to_ideal"] == pytest.approx(5.1 / 4.2, abs=1e-4)


def test_overhead_counts_this_runs_calls_only() -> None:
    provider = 1.4 + 0.6 + 2.8 + 0.05 + 1.9 + 1.9
    assert compute()["provider"] == {"calls": 6, "seconds": pytest.approx(provider), "statuses": {"200": 5, "400": 1}}
    assert compute()["overhead"] == pytest.approx(9.1 / provider, abs=1e-4)


def test_slots_busy_is_measured_while_anything_waits() -> None:
    # Two known from 0.12; something waits until 0.2, and from 0.22 to 4.1. Idle: one slot 0.12-0.2 and 3.3-4.1.
    assert compute()["slots_busy"] == pytest.approx(1 - (0.08 + 0.8) / (2 * (0.08 + 3.88)), abs=1e-4)
    # A lonely retry that becomes ready when nothing else waits or runs is no backlog before it is ready.
    alone = [run(0, "a", 0, 0, 1), run(1, "a", 0, 0, 1), run(2, "a", 50, 50.5, 51)]
    assert figures.slots_busy(alone, 2) == 0.0
    assert figures.slots_busy(alone[:2], 2) is None
    assert figures.slots_busy([], 2) is None


def test_the_caps_audit_sees_the_slot_left_idle_as_no_violation_but_a_loan_too_many_as_one() -> None:
    assert compute()["caps"]["violations"] == 0
    assert compute(scenario=replace(SCENARIO, total=1))["caps"]["violations"] == 3
    assert compute(scenario=replace(SCENARIO, lend=False))["caps"]["violations"] == 1


def test_nothing_is_lost_when_everything_is_accounted_for() -> None:
    assert (compute()["lost"], compute()["duplicate_effects"]) == (0, 0)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"sent": [*EVIDENCE.sent[:4], replace(EVIDENCE.sent[4], id=None, error="503")]}, "never accepted (503)"),
        ({"stored": EVIDENCE.stored[:4]}, "does not know it"),
        ({"stored": [*EVIDENCE.stored[:4], Stored("d4", "ana", "retrying", 2)]}, "still retrying"),
        ({"runs": EVIDENCE.runs[:4]}, "no run settled it"),
        ({"events": [event for event in EVIDENCE.events if event.subject != "d4"]}, "no document.read event"),
        ({"events": EVIDENCE.events[:4]}, "no document.failed event"),
        ({"dead_letters": []}, "not among the dead letters"),
    ],
)
def test_each_way_of_losing_a_document_is_found(change: dict[str, Any], missing: str) -> None:
    found = compute(replace(EVIDENCE, **change))
    assert found["lost"] == 1
    assert missing in found["lost_documents"][0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"events": [*EVIDENCE.events, replace(read(0), id="another")]}, "2 different document.read events"),
        ({"events": [*EVIDENCE.events, replace(read(2), id="another")]}, "both as read and as failed"),
        ({"dead_letters": [LETTER, replace(LETTER, id="job-2b")]}, "2 dead letters"),
        ({"runs": [*EVIDENCE.runs, run(0, "noisy", 7, 7, 8)]}, "settled by 2 runs"),
        ({"stored": [*EVIDENCE.stored, Stored("d9", "ana", "approved", 1)]}, "not one that was sent"),
        ({"sent": [*EVIDENCE.sent, replace(EVIDENCE.sent[4], index=5)]}, "one id for 2 documents"),
    ],
)
def test_each_way_of_doing_something_twice_is_found(change: dict[str, Any], fault: str) -> None:
    found = compute(replace(EVIDENCE, **change))
    assert found["duplicate_effects"] == 1
    assert fault in found["duplicates"][0]


def test_the_same_event_delivered_twice_is_one_effect() -> None:
    again = replace(EVIDENCE, events=[*EVIDENCE.events, read(0)], dead_letters=[LETTER, LETTER])
    assert compute(again)["duplicate_effects"] == 0
    assert compute(again)["dead_letters"]["total"] == 1


def test_dead_letters_are_the_broken_documents_and_no_other() -> None:
    assert compute()["dead_letters"] == {
        "total": 1, "expected": 1, "unexpected": 0, "missing": 0, "max_attempts": 1, "broken_max_attempts": 1,
    }  # fmt: skip
    wrong = replace(EVIDENCE, dead_letters=[replace(LETTER, id="job-0", subject="d0")])
    assert compute(wrong)["dead_letters"]["unexpected"] == 1
    assert compute(wrong)["dead_letters"]["missing"] == 1


def test_a_document_the_provider_failed_every_time_is_expected_to_die_of_its_last_attempt() -> None:
    tries = [Run("d0", "noisy", n, T + n, T + n, T + n + 0.5, "dead" if n == 4 else "retry") for n in (1, 2, 3, 4)]
    calls = [ProviderCall("INV-0", 1, n, T + n, T + n + 0.5, 500) for n in (1, 2, 3, 4)]
    died = replace(
        EVIDENCE,
        runs=[*tries, *EVIDENCE.runs[1:]],
        calls=[*calls, *EVIDENCE.calls[2:]],
        dead_letters=[LETTER, replace(LETTER, id="job-0", subject="d0")],
    )
    found = compute(died)["dead_letters"]
    assert (found["expected"], found["unexpected"], found["max_attempts"], found["broken_max_attempts"]) == (
        2,
        0,
        4,
        1,
    )
    early = compute(replace(died, runs=[*tries[:2], *EVIDENCE.runs[1:]]))["dead_letters"]
    assert early["unexpected"] == 1


def test_percentiles_are_nearest_rank() -> None:
    assert compute()["api_ms"] == {"p50": 1.0, "p99": 5.0, "max": 30.0, "probes": 100, "errors": 0}
    assert figures.percentile([3, 1, 2], 0.5) == 2
    assert figures.percentile([1, 2], 0.5) == 1
    assert figures.percentile([], 0.5) is None


def test_an_empty_run_has_figures_without_numbers() -> None:
    empty = Evidence(sent=[], stored=[], runs=[], calls=[], events=[], dead_letters=[], probe_ms=[])
    found = compute(empty)
    assert found["ratios"] == {"quiet_done": None, "all_done": None, "quiet_to_ideal": None, "all_to_ideal": None}
    assert found["overhead"] is None
    assert not all(promise.held for promise in promises.check(SCENARIO, found))


class TestPromises:
    """Each promise is held at its limit and broken just beyond it."""

    KEPT: ClassVar[dict[str, Any]] = {
        "lost": 0, "duplicate_effects": 0, "overhead": 1.1, "slots_busy": 0.95, "caps": {"violations": 0},
        "dead_letters": {"total": 100, "expected": 100, "unexpected": 0, "missing": 0, "max_attempts": 1},
        "ratios": {"quiet_to_ideal": 1.05, "quiet_done": 1.1, "all_done": 1.05},
        "measured": {"quiet_done_s": 30.0, "quiet_first_start_s": 1.5, "longest_job_s": 1.5},
        "api_ms": {"p99": 25.0, "errors": 0},
    }  # fmt: skip

    def test_all_are_held_at_their_limits(self) -> None:
        assert all(promise.held for promise in promises.check(Scenario(), self.KEPT))

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("lost", 1), ("duplicate_effects", 1), ("overhead", 1.1001), ("slots_busy", 0.9499), ("slots_busy", None),
            ("caps.violations", 1), ("dead_letters.total", 99), ("dead_letters.total", 101),
            ("dead_letters.unexpected", 1), ("dead_letters.missing", 1), ("dead_letters.max_attempts", 2),
            ("ratios.quiet_to_ideal", 1.0501), ("ratios.quiet_done", 1.1001), ("ratios.all_done", 1.0501),
            ("ratios.all_done", None), ("api_ms.p99", 25.1), ("api_ms.errors", 1),
            ("measured.quiet_first_start_s", 1.6),
        ],
    )  # fmt: skip
    def test_each_is_broken_beyond_it(self, path: str, value: float | None) -> None:
        group, _, name = path.rpartition(".")
        broken: dict[str, Any] = {**self.KEPT}
        if group:
            broken[group] = {**broken[group], name: value}
        else:
            broken[name] = value
        (missed,) = [promise for promise in promises.check(Scenario(), broken) if not promise.held]
        assert missed.measured == value

    def test_a_small_run_is_held_to_what_does_not_depend_on_its_size(self) -> None:
        small = replace(Scenario(), counts=(90, 2, 2, 2, 2), broken=0)
        late: dict[str, Any] = {
            **self.KEPT,
            "overhead": 3.0,
            "slots_busy": 0.1,
            "ratios": dict.fromkeys(self.KEPT["ratios"], 9.0),
            "api_ms": {"p99": 900.0, "errors": 0},
        }
        assert all(promise.held for promise in promises.check(small, late))
        enough = replace(small, counts=(92, 2, 2, 2, 2))
        assert {p.name for p in promises.check(enough, late) if not p.held} >= {
            "overhead",
            "slots_busy",
            "api_ms.p99",
        }
        broken = {**late, "lost": 1, "api_ms": {"p99": 1.0, "errors": 1}}
        assert {p.name for p in promises.check(small, broken) if not p.held} == {"lost", "api_ms.errors"}

    def test_without_lending_the_quiet_ones_may_gain_five_percent_at_most(self) -> None:
        strict = replace(Scenario(), lend=False)
        slow = {**self.KEPT, "slots_busy": 0.4, "ratios": dict.fromkeys(self.KEPT["ratios"], 2.5)}
        assert all(promise.held for promise in promises.check(strict, slow))
        for quiet, held in ((28.58, True), (28.5, False)):
            gained = {**slow, "measured": {"quiet_done_s": quiet}}
            (promise,) = [p for p in promises.check(strict, gained, self.KEPT) if "gain" in p.name]
            assert promise.held is held

    def test_a_failing_provider_leaves_the_promises_that_do_not_speak_of_time(self) -> None:
        figures = {**self.KEPT, "retries": compute()["retries"]}
        names = {promise.name for promise in promises.check(replace(Scenario(), error_rate=0.1), figures)}
        assert names == {
            "lost", "duplicate_effects", "dead_letters.total", "dead_letters.unexpected", "dead_letters.missing",
            "caps.violations", "retries.charged_waits", "retries.early_starts",
        }  # fmt: skip
