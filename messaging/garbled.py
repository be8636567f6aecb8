"""Records whose headers the Kafka client cannot read, made safe to hand on.

A header's name may be any bytes on the wire. For one that is not UTF-8 the client raises at the first question, and
its answer to the next one kills the process. So each record is asked once, before anything else looks.
"""

from operator import methodcaller

from confluent_kafka import Message

from messaging.message import RawHeaders

# Not `record.headers()`: once that line is warm, CPython 3.11 no longer looks whether the client's C code, which
# returns a list all the same, has set an error.
_ask = methodcaller("headers")


class Garbled:
    """Such a record: all of it but its headers, which count as none."""

    __slots__ = ("_record",)

    def __init__(self, record: Message) -> None:
        self._record = record

    def topic(self) -> str | None:
        return self._record.topic()

    def partition(self) -> int | None:
        return self._record.partition()

    def offset(self) -> int | None:
        return self._record.offset()

    def key(self) -> bytes | None:
        return self._record.key()

    def value(self) -> bytes | None:
        return self._record.value()

    def timestamp(self) -> tuple[int, int]:
        return self._record.timestamp()

    def headers(self) -> RawHeaders:
        return []


Record = Message | Garbled


def headers_of(record: Message) -> RawHeaders:
    """Its headers, none when they cannot be read. Ask nothing of its headers after that."""
    try:
        return _ask(record)  # type: ignore[no-any-return]
    except (SystemError, UnicodeDecodeError):
        return []


def checked(record: Message) -> Record:
    """The record itself, or what can be had of it."""
    try:
        _ask(record)
    except (SystemError, UnicodeDecodeError):
        return Garbled(record)
    return record
