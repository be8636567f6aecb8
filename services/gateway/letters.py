"""Pure: a dead letter, read from its record. Whatever a record lacks or garbles, the rest of it is kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from messaging.deadletter import Death, Hop, original_headers
from messaging.erasure import happened
from messaging.message import SUBJECT, TYPE, Key, header_text, headers_to_dict, message_id
from services.gateway.records import Told

LONGEST_NAME = 200
LONGEST_ERROR = 1000
UNKNOWN = "unknown"
"""The reason of a letter that does not give one."""

_CLOCKS_DIFFER = timedelta(days=1)

Headers = list[tuple[str, bytes | None]]


class Record(Protocol):
    """What is needed of a Kafka message."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Letter(Told):
    """A dead letter as it is stored. `headers` are the original record's, None when the client cannot read them."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    @property
    def size_bytes(self) -> int:
        """Key, value and headers of the original record."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


def read(record: Record, headers: Headers | None, source: str, consumer: str, now: datetime) -> Letter:
    """The letter in a record of `consumer`'s dead-letter topic. `now` stands in for a time that cannot be."""
    hop, death, known = Hop(headers), Death(headers), headers_to_dict(headers)
    topic, partition, offset = str(record.topic()), int(record.partition() or 0), int(record.offset() or 0)
    place = f"{topic}/{partition}/{offset}"
    owner = _owner(record.key())
    return Letter(
        source=source,
        consumer=consumer,
        # A record that no consumer of ours set aside must not pass for another's by its id.
        message_id=place if hop.origin is None else message_id(known, hop.origin),
        generation=hop.generation,
        tenant=owner.tenant if owner else None,
        owner=owner.sender if owner else None,
        type=_text(header_text(known, TYPE), LONGEST_NAME),
        subject=_text(header_text(known, SUBJECT), LONGEST_NAME),
        reason=_text(death.reason, LONGEST_NAME) or UNKNOWN,
        error=_text(death.error, LONGEST_ERROR),
        attempts=death.attempts,
        origin=hop.origin or place,
        topic=topic,
        partition=partition,
        offset=offset,
        died_at=_time(death.at, record.timestamp()[1], now),
        key=record.key(),
        value=record.value(),
        headers=None if headers is None else original_headers(headers),
    )


def erased(letter: Letter, marks: Mapping[Key, datetime]) -> bool:
    """Whether it is about what happened before its owner was erased; `marks` say who was, and when."""
    if letter.tenant is None or letter.owner is None:
        return False
    mark = marks.get(Key(letter.tenant, letter.owner))
    return mark is not None and (happened(headers_to_dict(letter.headers)) or letter.died_at) <= mark


def _owner(key: bytes | None) -> Key | None:
    try:
        return Key.parse(key)
    except ValueError:
        return None


def _text(text: str | None, longest: int) -> str | None:
    return text.replace("\0", "")[:longest] or None if text else None


def _time(said: float | None, stamped_ms: int, now: datetime) -> datetime:
    """What the letter says, else Kafka's time stamp, else now; nothing of the future or before Unix time."""
    latest = (now + _CLOCKS_DIFFER).timestamp()
    for seconds in (said or 0.0, stamped_ms / 1000):
        if 0 < seconds <= latest:
            return datetime.fromtimestamp(seconds, UTC)
    return now
