"""What is kept of a record is all of it."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from messaging.kept import Kept
from messaging.message import RawHeaders, header_pairs, headers_to_dict

NAMES = st.text(max_size=5) | st.sampled_from(["ce_id", "ce_type"])
PAIRS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=8)), max_size=10)


@dataclass
class Raw:
    """A record as the client hands it out."""

    k: bytes | None
    v: bytes | None
    h: RawHeaders

    def key(self) -> bytes | None:
        return self.k

    def value(self) -> bytes | None:
        return self.v

    def headers(self) -> RawHeaders:
        return self.h


@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9), st.none() | PAIRS)
def test_nothing_of_a_record_is_lost(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> None:
    kept = Kept(Raw(key, value, headers))  # type: ignore[arg-type]
    assert (kept.key(), kept.value()) == (key, value)
    assert header_pairs(kept.headers()) == (headers or []), "byte for byte, in order, repeats included"
    assert kept.named() == headers_to_dict(headers)
    told = sum(len(name) + len(content or b"") for name, content in headers or [])
    assert kept.size == len(key or b"") + len(value or b"") + told


def test_what_a_handler_does_to_its_headers_stays_with_it() -> None:
    kept = Kept(Raw(b"k", b"v", [("a", b"1")]))  # type: ignore[arg-type]
    kept.named()["a"] = b"2"
    assert (kept.headers(), kept.named()) == ([("a", b"1")], {"a": b"1"})


def test_records_with_the_same_header_names_share_them() -> None:
    one, two = (Kept(Raw(b"k", b"v", [(bytes([99, 101]).decode(), b"1")])) for _ in range(2))  # type: ignore[arg-type]
    assert next(iter(one.named())) is next(iter(two.named()))
