"""From a record's headers and bytes to the event and its handler, by type and major version."""

from collections.abc import Collection, Mapping
from typing import Any

from messaging.codec import Codec
from messaging.job import Handler
from messaging.message import TYPE, VERSION


class EventReader:
    """The consumer's reader for a HANDLERS table.

    `leaves_alone` are event classes of the same topic that are somebody else's: their records are passed over.
    Anything else that is not in the table is unknown, and a dead letter.
    """

    def __init__(
        self, codec: Codec, handlers: Mapping[type[Any], Handler], leaves_alone: Collection[type[Any]] = ()
    ) -> None:
        self._codec = codec
        self._handlers = dict(handlers)
        self._passed = {(event.TYPE.encode(), str(event.MAJOR).encode()) for event in leaves_alone}

    async def read(self, headers: dict[str, bytes], value: bytes | None) -> tuple[Any, Handler] | None:
        """None: not this consumer's. Raises UnknownEvent or Undecodable (dead letter), Outage (pause)."""
        if self._passed and (headers.get(TYPE, b""), headers.get(VERSION, b"")) in self._passed:
            return None
        event = self._codec.decode_known(headers, value, self._handlers)
        if event is None:
            event = await self._codec.decode(headers, value, self._handlers)
        return event, self._handlers[type(event)]
