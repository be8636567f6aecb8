"""Headers of our own: replaced at each hop, never appended; what arrives in them is untrusted."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.deadletter import (
    DEAD_AT,
    DEAD_ATTEMPTS,
    DEAD_ERROR,
    DEAD_REASON,
    DUE,
    FAILURES,
    GENERATION,
    MAX_ORIGIN,
    ORIGIN,
    Death,
    Hop,
    dead_headers,
    original_headers,
    retry_headers,
    sent_back_headers,
)

ORIGINAL = [("ce_id", b"1"), ("x", None), ("x", b"again"), ("blob", b"\xff\x00")]


def test_ten_trips_keep_the_original_headers_and_the_size() -> None:
    headers = list(ORIGINAL)
    sizes = set()
    for trip in range(11):
        headers = sent_back_headers(original_headers(headers), origin="jobs/0/7", generation=trip)
        headers = retry_headers(headers, origin="jobs/0/7", due_at=1_700_000_000.5, failures=3, generation=trip)
        headers = dead_headers(
            headers, origin="jobs/0/7", consumer="reader", reason="broken", error="no", attempts=4, generation=trip
        )
        sizes.add(sum(len(name) + len(value or b"") for name, value in headers))
        assert original_headers(headers) == ORIGINAL, f"trip {trip}"
    assert len(sizes) == 1


def test_a_hop_reads_back_what_was_written() -> None:
    hop = Hop(retry_headers(ORIGINAL, origin="jobs/0/7", due_at=12.345, failures=2, generation=3))
    assert (hop.origin, hop.due_at, hop.failures, hop.generation) == ("jobs/0/7", 12.345, 2, 3)


def test_a_letter_sent_back_is_due_at_once_with_its_attempts_anew() -> None:
    hop = Hop(sent_back_headers(ORIGINAL, origin="jobs/0/7", generation=12))
    assert (hop.origin, hop.due_at, hop.failures, hop.generation) == ("jobs/0/7", 0.0, 0, 12)


def test_a_death_reads_back_what_was_written() -> None:
    death = Death(
        dead_headers(
            ORIGINAL, origin="jobs/0/7", consumer="reader", reason="broken", error="nö", attempts=4, generation=0
        )
    )
    assert (death.reason, death.error, death.attempts) == ("broken", "nö", 4)
    assert death.at == pytest.approx(time.time(), abs=5)
    silent = Death([(DEAD_REASON, b"\xff"), (DEAD_ERROR, None), (DEAD_ATTEMPTS, b"-1"), (DEAD_AT, b"now")])
    assert (silent.reason, silent.error, silent.attempts, silent.at) == (None, None, None, None)


@pytest.mark.parametrize("origin", ["", "a\0b", "x" * (MAX_ORIGIN + 1)])
def test_an_origin_that_no_table_takes_counts_as_absent(origin: str) -> None:
    assert Hop([(ORIGIN, origin.encode())]).origin is None


@pytest.mark.parametrize("forged", [b"-1", b"1e9", b"", b"\xff", b"9" * 40, "٣".encode()])
def test_forged_numbers_count_as_absent(forged: bytes) -> None:
    hop = Hop([(DUE, forged), (FAILURES, forged), (GENERATION, forged), (ORIGIN, b"\xff\xfe")])
    assert (hop.due_at, hop.failures, hop.generation, hop.origin) == (0.0, 0, 0, None)


@given(st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_no_header_of_anybody_else_is_lost(headers: list[tuple[str, bytes | None]]) -> None:
    sent = retry_headers(headers, origin="a/0/0", due_at=0, failures=1, generation=0)
    assert original_headers(sent) == original_headers(headers)
    Hop(headers)
