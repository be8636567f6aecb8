"""A record as it waits for its turn: key, value and headers, and nothing of the Kafka client's objects.

What the client makes of eight headers is 25 objects. Kept for every waiting record, they take more of the machine
than all else that is done for a no-op job: memory that has gone cold by the time it is read again, and a garbage
collector that walks it. Here the names are shared by all records that have them.
"""

from sys import intern

from confluent_kafka import Message

from messaging.garbled import headers_of
from messaging.message import RawHeaders, header_pairs, headers_to_dict


class Kept:
    """One record. `size`: bytes of key, value and headers."""

    __slots__ = ("_headers", "_key", "_value", "size")

    def __init__(self, record: Message) -> None:
        self._key = record.key()
        self._value = record.value()
        raw = headers_of(record) or []
        named = {intern(name): value for name, value in raw} if isinstance(raw, list) else {}
        self._headers: dict[str, bytes] | list[tuple[str, bytes | None]] = named
        try:
            # Joined to be counted: it is the quickest way, and refuses a header without a value.
            size = len("".join(named)) + len(b"".join(named.values()))
            plain = len(named) == len(raw)
        except TypeError:
            plain = False
        if not plain:
            self._headers = header_pairs(raw)
            size = sum(len(name) + len(value or b"") for name, value in self._headers)
        self.size = len(self._key or b"") + len(self._value or b"") + size

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> RawHeaders:
        """All of them in order, repeats included."""
        headers = self._headers
        return list(headers.items()) if isinstance(headers, dict) else headers

    def named(self) -> dict[str, bytes]:
        """The last value of each header; the caller's own."""
        headers = self._headers
        if isinstance(headers, dict):
            return headers.copy()
        return headers_to_dict(headers)
