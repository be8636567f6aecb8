"""Pure: a record on its way through the scheduler, and the partition it came from."""

from typing import NamedTuple, Protocol

from messaging.message import Key, RawHeaders
from messaging.offsets import PartitionOffsets

NOBODY = Key("-", "-")
"""Whose slots a record without a readable key uses; it can only become a dead letter."""


class RawRecord(Protocol):
    """What is needed of a Kafka message; see `kept`."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> RawHeaders: ...
    def named(self) -> dict[str, bytes]: ...


class Partition:
    """One partition for as long as it is assigned. `active` ends with the assignment: late results see it."""

    __slots__ = ("active", "is_retry", "number", "offsets", "topic")

    def __init__(self, topic: str, number: int, *, is_retry: bool) -> None:
        self.topic = topic
        self.number = number
        self.is_retry = is_retry
        self.active = True
        self.offsets = PartitionOffsets()


class Entry:
    """One record on its way through the scheduler. `size`: bytes of key, headers and value; `ready_at`: Unix time;
    `due`: its retry time has passed.
    """

    __slots__ = ("due", "key", "offset", "partition", "ready_at", "record", "size")

    def __init__(self, key: Key, partition: Partition, offset: int, record: RawRecord, size: int, ready_at: float):
        self.key = key
        self.partition = partition
        self.offset = offset
        self.record = record
        self.size = size
        self.ready_at = ready_at
        self.due = False


class Bare(NamedTuple):
    """What is kept of a record whose payload is not: whose it is, and where it can be read again."""

    key: Key
    partition: Partition
    offset: int
