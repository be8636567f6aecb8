"""What a dead letter is read as: everything kept, and nothing believed that cannot be."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.deadletter import DEAD_AT, DEAD_ATTEMPTS, DEAD_ERROR, DEAD_REASON, GENERATION, ORIGIN, dead_headers
from services.gateway.letters import LONGEST_ERROR, Headers, Letter, read

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ORIGINAL: Headers = [
    ("ce_id", b"m-1"),
    ("ce_type", b"job"),
    ("x", None),
    ("x", b""),
    ("x", b"\xff\0"),
    ("ce_subject", b"s"),
]


@dataclass(frozen=True)
class Raw:
    """A record of a dead-letter topic."""

    raw_key: bytes | None = b"acme:ann"
    raw_value: bytes | None = b"value"
    stamp: int = int(NOW.timestamp() * 1000) - 5000

    def topic(self) -> str:
        return "jobs.reader.dlq"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def timestamp(self) -> tuple[int, int]:
        return 1, self.stamp


def letter(headers: Headers | None, raw: Raw | None = None) -> Letter:
    return read(raw or Raw(), headers, "jobs", "reader", NOW)


def ours(generation: int = 0, error: str = "It breaks off.") -> Headers:
    return dead_headers(
        ORIGINAL,
        origin="jobs/1/5",
        consumer="reader",
        reason="malformed",
        error=error,
        attempts=4,
        generation=generation,
    )


def test_a_letter_of_ours_says_everything() -> None:
    found = letter(ours(generation=3))
    assert (found.source, found.consumer, found.message_id, found.generation) == ("jobs", "reader", "m-1", 3)
    assert (found.tenant, found.owner, found.type, found.subject) == ("acme", "ann", "job", "s")
    assert (found.reason, found.error, found.attempts, found.origin) == ("malformed", "It breaks off.", 4, "jobs/1/5")
    assert (found.topic, found.partition, found.offset) == ("jobs.reader.dlq", 2, 7)
    assert (found.key, found.value, found.headers) == (b"acme:ann", b"value", ORIGINAL)
    assert found.size_bytes == 8 + 5 + sum(len(name) + len(value or b"") for name, value in ORIGINAL)


@pytest.mark.parametrize("headers", [None, [], [("ce_id", b"m-1")], [("ce_id", b"\xff"), (ORIGIN, b"\xff")]])
def test_what_no_consumer_set_aside_is_known_by_its_place(headers: Headers | None) -> None:
    found = letter(headers)
    assert found.message_id == found.origin == "jobs.reader.dlq/2/7"
    assert (found.generation, found.reason, found.error, found.attempts) == (0, "unknown", None, None)
    assert found.headers == (None if headers is None else [pair for pair in headers if pair[0] != ORIGIN])


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"acme",
        b":",
        b"acme:",
        b":ann",
        b"\xff:ann",
        b"a\0:ann",
        b"acme:" + b"x" * 201,
        ("acme:" + "é" * 101).encode(),
        b"x" * 100_000,
    ],
)
def test_a_key_that_names_nobody(key: bytes | None) -> None:
    found = letter(ours(), Raw(raw_key=key))
    assert (found.tenant, found.owner) == (None, None)
    assert found.key == key


def test_a_long_error_is_cut_and_zeros_are_left_out() -> None:
    found = letter([*ORIGINAL, (ORIGIN, b"jobs/1/5"), (DEAD_ERROR, b"\0" + b"e" * 5000), (DEAD_REASON, b"\0")])
    assert found.error == "e" * LONGEST_ERROR
    assert found.reason == "unknown"


@pytest.mark.parametrize("said", [b"0", b"-5", b"9" * 15, b"soon", b"\xff"])
def test_a_time_that_cannot_be_is_not_believed(said: bytes) -> None:
    stamped = NOW - timedelta(seconds=5)
    assert letter([(DEAD_AT, said)]).died_at == stamped
    assert letter([(DEAD_AT, said)], Raw(stamp=-1)).died_at == NOW
    assert letter([(DEAD_AT, said)], Raw(stamp=2**62)).died_at == NOW


RANDOM = st.lists(
    st.tuples(
        st.sampled_from([ORIGIN, GENERATION, DEAD_AT, DEAD_ATTEMPTS, DEAD_REASON, DEAD_ERROR, "ce_id", "ce_type"])
        | st.text(),
        st.none() | st.binary(),
    )
)


@given(RANDOM, st.none() | st.binary(), st.none() | st.binary(), st.integers(-(2**63), 2**63 - 1))
def test_anything_is_a_letter(headers: Headers, key: bytes | None, value: bytes | None, stamp: int) -> None:
    found = letter(headers, Raw(key, value, stamp))
    assert (found.key, found.value) == (key, value)
    assert "\0" not in "".join(filter(None, (found.message_id, found.tenant, found.owner, found.type, found.origin)))
    assert 0 <= found.generation <= 1_000_000
    assert found.died_at <= NOW + timedelta(days=1)
