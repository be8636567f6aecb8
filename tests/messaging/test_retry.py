"""What becomes of a failure, and how long it waits."""

import asyncio
import math
import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.errors import (
    Deferred,
    Fenced,
    LostAttempts,
    MessagingError,
    NotRetryable,
    Outage,
    OutboxFull,
    Retryable,
    Throttled,
    Undecodable,
    UnknownEvent,
)
from messaging.policy import Backoff
from messaging.retry import (
    EXHAUSTED,
    LONGEST_MESSAGE,
    Decision,
    Pause,
    RetryIn,
    SetAside,
    Wait,
    decide,
    describe,
    longest_wait,
)

JOBS = Backoff(attempts=4, base=1.0, cap=60.0)


def after(error: BaseException, attempt: int = 1, backoff: Backoff = JOBS) -> Decision:
    return decide(error, attempt, backoff, random.Random(1))


@pytest.mark.parametrize("attempt", [1, 3, 4, 99])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotRetryable("The PDF is encrypted.", "encrypted_pdf"), "encrypted_pdf"),
        (NotRetryable("No."), "not_retryable"),
        (Undecodable("Garbage."), "undecodable"),
        (UnknownEvent("No reader."), "unknown_event"),
        (LostAttempts("Three starts."), "killed_its_process"),
    ],
)
def test_what_no_retry_can_fix_is_set_aside_at_any_attempt(error: NotRetryable, reason: str, attempt: int) -> None:
    assert after(error, attempt) == SetAside(reason, str(error))


@pytest.mark.parametrize(
    "error", [Retryable("later"), ValueError("bug"), TimeoutError(), OutboxFull("full"), Fenced("")]
)
def test_what_may_pass_is_tried_so_often_and_no_more(error: Exception) -> None:
    for attempts in (1, 3, 4):
        backoff = Backoff(attempts=attempts)
        decisions = [after(error, attempt, backoff) for attempt in range(1, attempts + 2)]
        assert all(isinstance(decision, RetryIn) for decision in decisions[: attempts - 1])
        assert decisions[attempts - 1 :] == [SetAside(EXHAUSTED, describe(error))] * 2


@pytest.mark.parametrize("attempt", [1, 4, 10**9])
def test_what_is_nobodys_fault_never_uses_an_attempt_up(attempt: int) -> None:
    assert after(Throttled("too many", 7.5), attempt) == Wait(7.5)
    assert after(Throttled("too many", -3.0), attempt) == Wait(0.0)
    assert after(Throttled("too many", math.nan), attempt) == Wait(0.0)
    assert after(Outage("gone", "database"), attempt) == Pause("database")


@given(st.floats(0.001, 1e12), st.integers(1, 3))
def test_who_is_asked_to_wait_alone_waits_so_long_within_bounds(seconds: float, attempt: int) -> None:
    decision = after(Deferred("busy", seconds), attempt)
    assert isinstance(decision, RetryIn)
    assert min(seconds, JOBS.cap) <= decision.seconds <= min(1.1 * seconds, JOBS.cap)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_a_wait_that_is_none_is_like_any_other_retry(seconds: float) -> None:
    decision = after(Deferred("busy", seconds))
    assert isinstance(decision, RetryIn)
    assert 0.0 <= decision.seconds <= longest_wait(1, JOBS)


def test_who_asks_for_ever_comes_to_an_end() -> None:
    assert after(Deferred("busy", 5.0), JOBS.attempts) == SetAside(EXHAUSTED, "busy")


def test_a_cancelled_run_is_no_failure() -> None:
    with pytest.raises(TypeError, match="given back"):
        after(asyncio.CancelledError())


@given(st.text(max_size=3000), st.sampled_from([Retryable, ValueError, MessagingError, NotRetryable]))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_a_described_error_is_one_short_clean_line(text: str, kind: type[Exception]) -> None:
    described = describe(kind(text))
    assert 0 < len(described) <= LONGEST_MESSAGE
    assert not [c for c in described if unicodedata.category(c).startswith("C")]
    assert described == " ".join(described.split())
    described.encode("utf-8")


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (Retryable("The  model\nis\taway."), "The model is away."),
        (Retryable("red \x1b[31malarm\x00"), "red [31malarm"),
        (Retryable("ab\u200b\u202ecd \ud800"), "abcd"),
        (Retryable(""), "Retryable"),
        (Retryable("\x00 \x07"), "Retryable"),
        (ValueError("bad input"), "ValueError: bad input"),
        (ValueError("\x00"), "ValueError"),
        (KeyError("total"), "KeyError: 'total'"),
        (NotRetryable("x" * LONGEST_MESSAGE), "x" * LONGEST_MESSAGE),
        (NotRetryable("x" * 10**6), "x" * (LONGEST_MESSAGE - 1) + "…"),
    ],
)
def test_examples_of_described_errors(error: Exception, described: str) -> None:
    assert describe(error) == described


def distance_from_uniform(samples: list[float], top: float) -> float:
    """The Kolmogorov-Smirnov statistic against uniform on [0, top]."""
    ordered, n = sorted(samples), len(samples)
    return max(max((i + 1) / n - x / top, x / top - i / n) for i, x in enumerate(ordered))


@pytest.mark.parametrize("backoff", [JOBS, Backoff(attempts=99, base=0.3, cap=7.0)], ids=str)
@pytest.mark.parametrize("attempt", range(1, 11))
def test_delays_have_full_jitter(attempt: int, backoff: Backoff) -> None:
    rng, plenty = random.Random(attempt), Backoff(99, backoff.base, backoff.cap)
    samples = []
    for _ in range(2000):
        decision = decide(Retryable("later"), attempt, plenty, rng)
        assert isinstance(decision, RetryIn)
        samples.append(decision.seconds)
    top = min(backoff.cap, backoff.base * 2 ** (attempt - 1))
    assert all(0 <= sample <= top for sample in samples)
    # The value that a truly uniform sample exceeds once in a thousand times.
    assert distance_from_uniform(samples, top) < 1.95 / math.sqrt(len(samples))


def test_the_statistic_tells_other_jitters_apart() -> None:
    rng = random.Random(1)
    equal_jitter = [0.5 + rng.uniform(0, 0.5) for _ in range(2000)]
    assert distance_from_uniform(equal_jitter, 1.0) > 0.4
    assert distance_from_uniform([1.0] * 2000, 1.0) > 0.9


@given(st.integers(1, 10**30), st.floats(1e-6, 1e6), st.floats(1.0, 1e6))
@settings(derandomize=True, deadline=None)
def test_the_longest_wait_never_overflows_nor_passes_the_cap(attempt: int, base: float, factor: float) -> None:
    backoff = Backoff(attempts=10, base=base, cap=base * factor)
    longest = longest_wait(attempt, backoff)
    assert base <= longest <= backoff.cap
    if attempt <= 20:
        assert longest == min(backoff.cap, base * 2 ** (attempt - 1))
    if attempt > 60:
        assert longest == backoff.cap


@pytest.mark.parametrize("wrong", [(0, 1.0, 60.0), (4, 0.0, 60.0), (4, 2.0, 1.0)])
def test_a_backoff_that_cannot_work_is_refused(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="attempts >= 1"):
        Backoff(*wrong)
