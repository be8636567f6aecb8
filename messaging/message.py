"""The vocabulary of everything that travels. Imports nothing of ours."""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

# CloudEvents 1.0, Kafka binding, binary mode: attribute name with "ce_" in front.
SPECVERSION = "ce_specversion"
ID = "ce_id"
SOURCE = "ce_source"
TYPE = "ce_type"
TIME = "ce_time"
SUBJECT = "ce_subject"
VERSION = "event_version"
TRACEPARENT = "traceparent"

MAX_KEY_PART = 200
"""Longest tenant or sender, in bytes of UTF-8: a key is stored beside every job, so it stays short."""

MAX_ID = 200
"""Longest message id, in characters, that is used: it is kept beside every job, and in an index."""


class Key(NamedTuple):
    """Who a record belongs to: order and fairness are kept per key. On the wire: ``<tenant>:<sender>``."""

    tenant: str
    sender: str

    @classmethod
    def parse(cls, raw: bytes | None) -> "Key":
        """Read a record's key. Raises ValueError for what is not ``<tenant>:<sender>`` in printable UTF-8."""
        if not raw:
            raise ValueError("the record has no key; expected <tenant>:<sender>")
        tenant, colon, sender = raw.decode("utf-8").partition(":")
        if not colon:
            raise ValueError("the record's key is not <tenant>:<sender>")
        for name, part in (("tenant", tenant), ("sender", sender)):
            if wrong := wrong_in_part(part):
                raise ValueError(f"the {name} in the record's key {wrong}")
        return cls(tenant, sender)

    def __str__(self) -> str:
        return f"{self.tenant}:{self.sender}"


def wrong_in_part(part: str) -> str | None:
    """Why a tenant or sender cannot be one, as the rest of a sentence; None when it can."""
    if not part:
        return "is empty"
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return "is not text in UTF-8"
    if size > MAX_KEY_PART:
        return f"is longer than {MAX_KEY_PART} bytes"
    # Postgres refuses a NUL, and no other control character helps a person who reads it.
    return None if part.isprintable() else "holds control characters"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event or job on its way into the outbox: the value is already encoded (see `codec`).

    It happened when the database writes it down (`occurred_at` None): by the clock that its rows' times are of.
    """

    topic: str
    key: str
    type: str
    version: int
    payload: bytes
    source: str
    subject: str
    traceparent: str | None = None
    id: uuid.UUID = field(default_factory=lambda: new_id())
    occurred_at: datetime | None = None


def new_id() -> uuid.UUID:
    """A UUID version 7 (RFC 9562, 5.7): 48 bits of Unix milliseconds, then random bits; sorts by time."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return uuid.UUID(int=value)


RawHeaders = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None
"""Headers as the Kafka client's types have them; what it hands out in fact is a list of (name, bytes or None)."""


def header_pairs(raw: RawHeaders) -> list[tuple[str, bytes | None]]:
    """All headers in order, repeats included, values as bytes."""
    pairs = raw.items() if isinstance(raw, Mapping) else raw or ()
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def headers_to_dict(raw: RawHeaders) -> dict[str, bytes]:
    """The last value of each header. Kafka allows repeats; a repeated name is a later writer's correction."""
    if isinstance(raw, list):
        # What the client hands out, once a record: names, and bytes or None.
        found = dict(raw)
        if None not in found.values():
            return found
    return {name: value for name, value in header_pairs(raw) if value is not None}


def header_text(headers: Mapping[str, bytes], name: str) -> str | None:
    """A header as text, or None when it is missing or not UTF-8 (headers are untrusted)."""
    raw = headers.get(name)
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def given_id(headers: Mapping[str, bytes]) -> str | None:
    """The record's ce_id, when it has one that can be used."""
    raw = headers.get(ID)
    try:
        given = raw.decode() if raw else None
    except UnicodeDecodeError:
        return None
    return given if given and len(given) <= MAX_ID and "\0" not in given else None


def message_id(headers: Mapping[str, bytes], origin: str) -> str:
    """What a record is known by: its ce_id, or where it was first written when it has none that can be used."""
    return given_id(headers) or origin
