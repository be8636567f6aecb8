"""One record as faust hands it out, in the words of the house."""

from typing import Any

from messaging.message import TIME, Key, RawHeaders, header_text, headers_to_dict
from services.analytics.counting import Place, happened
from services.analytics.garbled import readable

NOBODY = Key("-", "-")
"""Whose records without a usable key are, where senders are told apart."""


class Record:
    """`stored_at` is Kafka's time stamp, Unix time in seconds; `generation` is the group's at the time: what faust
    read before a rebalance has another than what it reads after it.
    """

    __slots__ = ("_event", "generation", "headers", "key", "place", "raw_headers", "stored_at", "value")

    def __init__(self, event: Any) -> None:
        message = event.message
        self._event = event
        self.generation: int = message.generation_id
        self.place = Place(message.topic, message.partition, message.offset)
        self.key: bytes | None = message.key
        self.value: bytes | None = message.value
        self.raw_headers: RawHeaders = readable(message.headers)
        self.headers = headers_to_dict(self.raw_headers)
        self.stored_at: float = message.timestamp

    @property
    def owner(self) -> Key:
        """The sender its key names, or NOBODY."""
        try:
            return Key.parse(self.key)
        except ValueError:
            return NOBODY

    @property
    def happened(self) -> float:
        """When its event did, Unix time in seconds."""
        return happened(header_text(self.headers, TIME), self.stored_at)

    @property
    def revoked(self) -> bool:
        """Whether partitions were assigned anew since: then it is read again, from the committed offset on."""
        return bool(self.generation != self._event.app.consumer_generation_id)

    def ack(self) -> None:
        """It needs no more work: its offset may be committed."""
        self._event.ack()
