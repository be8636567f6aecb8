"""Keys, ids and headers."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.message import (
    MAX_ID,
    MAX_KEY_PART,
    Key,
    header_text,
    headers_to_dict,
    message_id,
    new_id,
    wrong_in_part,
)


def test_ids_are_version_7_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(1000)]
    assert {i.version for i in ids} == {7}
    assert {i.variant for i in ids} == {uuid.RFC_4122}
    assert len(set(ids)) == 1000
    stamps = [i.int >> 80 for i in ids]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("given_id", [None, b"", b"\xff", b"a\0b", b"x" * (MAX_ID + 1)])
def test_a_record_without_a_usable_id_is_known_by_its_origin(given_id: bytes | None) -> None:
    headers = {} if given_id is None else {"ce_id": given_id}
    assert message_id(headers, "jobs/0/7") == "jobs/0/7"
    assert message_id({"ce_id": b"m-1"}, "jobs/0/7") == "m-1"


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"acme",
        b":sender",
        b"acme:",
        b"\xff:x",
        b"a\0:b",
        b"a:b\n",
        b"a:" + b"x" * (MAX_KEY_PART + 1),
        ("a:" + "é" * (MAX_KEY_PART // 2 + 1)).encode(),
        ("字" * (MAX_KEY_PART // 3 + 1) + ":b").encode(),
    ],
)
def test_a_key_that_names_no_sender_is_refused(raw: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"key|utf-8"):
        Key.parse(raw)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b":sender", "the tenant in the record's key is empty"),
        (b"acme:", "the sender in the record's key is empty"),
        (b"a\0:b", "the tenant in the record's key holds control characters"),
        (b"a:" + b"x" * (MAX_KEY_PART + 1), "the sender in the record's key is longer than 200 bytes"),
    ],
)
def test_it_is_said_which_part_of_a_key_is_wrong(raw: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Key.parse(raw)


def test_half_a_character_is_no_name() -> None:
    assert wrong_in_part("\udcff") == "is not text in UTF-8"
    assert wrong_in_part("ann:7 é") is None


@given(st.text(min_size=1, max_size=200).filter(lambda t: ":" not in t), st.text(min_size=1, max_size=200))
def test_a_key_survives_the_wire(tenant: str, sender: str) -> None:
    try:
        raw = str(Key(tenant, sender)).encode()
    except UnicodeEncodeError:
        return
    if max(len(tenant.encode()), len(sender.encode())) > MAX_KEY_PART:
        with pytest.raises(ValueError, match="200 bytes"):
            Key.parse(raw)
        return
    if not (tenant + sender).isprintable():
        with pytest.raises(ValueError, match="control characters"):
            Key.parse(raw)
        return
    assert Key.parse(raw) == Key(tenant, sender)


def test_the_last_of_repeated_headers_counts_and_bad_utf8_is_absent() -> None:
    headers = headers_to_dict([("a", b"1"), ("b", b"\xff"), ("a", b"2"), ("c", None)])
    assert headers == {"a": b"2", "b": b"\xff"}
    assert header_text(headers, "a") == "2"
    assert header_text(headers, "b") is None
    assert header_text(headers, "c") is None
