"""Events as bytes: Avro in the Confluent framing (a zero byte, the schema's id in four bytes, the value).

The codec is told which events exist. After the first use of a schema id, encoding and decoding do no I/O.
"""

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from messaging import learnt
from messaging.errors import Misconfigured, Outage, UnknownEvent, reason
from messaging.line import Line, framed
from messaging.message import TYPE, VERSION, Envelope, Key
from messaging.registry import Registry, Schema
from messaging.telemetry import current_traceparent

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Contract:
    """One event as the house knows it: its dataclass (with TYPE and MAJOR), its topic, its newest Avro schema."""

    event: type[Any]
    topic: str
    schema: Schema

    @property
    def subject(self) -> str:
        """Where the registry keeps the event's versions (TopicRecordName)."""
        return f"{self.topic}-{self.schema['namespace']}.{self.schema['name']}"


class Codec:
    """Encodes and decodes the events of its contracts. Raises Misconfigured when a dataclass and its schema differ.

    `await prepare(...)` once at start for the events the process writes; then `encode` and `envelope` do no I/O.
    A process that serves before that tells what it will write by `expect`.
    """

    def __init__(self, registry: Registry, contracts: Iterable[Contract]) -> None:
        self._registry = registry
        self._lines = {
            contract.event: Line(contract.event, contract.topic, contract.subject, contract.schema)
            for contract in contracts
        }
        self._by_headers = {
            (line.event.TYPE.encode(), str(line.event.MAJOR).encode()): line for line in self._lines.values()
        }

    def expect(self, events: Iterable[type[Any]]) -> None:
        """Until `prepare` has come through for these, to write one is an Outage, no fault of the caller."""
        for event in events:
            self._line(event).expected = True

    def prepared(self) -> bool:
        """Whether all that is expected can be written."""
        return all(line.writes is not None for line in self._lines.values() if line.expected)

    async def prepare(self, events: Iterable[type[Any]], kept: learnt.Learnt | None = None) -> bool:
        """Learn the schema ids of the events this process writes; what is kept of them is used only in an outage.

        False when it was: then `check` them once the registry answers. Raises Misconfigured when one is not
        registered, Outage when the registry is away and an id is not kept.
        """
        lines = [self._line(event) for event in events]
        try:
            ids = await self._ask(lines)
        except Outage as outage:
            known = {} if kept is None else await kept.find([line.name for line in lines])
            if any(line.name not in known for line in lines):
                raise
            for line in lines:
                line.write_with(known[line.name])
            log.warning("codec.uses_kept_ids", error=reason(outage))
            return False
        if kept is not None:
            await kept.keep(ids)
        for line in lines:
            line.write_with(ids[line.name])
        return True

    async def check(self, events: Iterable[type[Any]], kept: learnt.Learnt) -> None:
        """Hold ids that were kept against the registry's: one that differs is written with from here on, and kept.

        A registry that was restored from an older backup gives out other ids. Raises Outage while it is away, and
        while it does not have what we write: the deploy step will bring it, perhaps under another id.
        """
        lines = [self._line(event) for event in events]
        try:
            ids = await self._ask(lines)
        except Misconfigured as refused:
            raise Outage(str(refused), "registry") from refused
        for line in lines:
            told = ids[line.name]
            if line.writes != told:
                log.error("codec.kept_id_was_wrong", subject=line.subject, kept=line.writes, registry=told)
                line.write_with(told)
        # Also what did not differ: the last time, the database may have been away.
        await kept.keep(ids)

    def encode(self, event: object) -> bytes:
        """The framed bytes of an event. Raises ValueError when a field's value is not of its type, Outage while its
        schema's id is expected."""
        return self._line(type(event)).encode(event)

    def envelope(self, event: object, *, source: str, subject: str, key: Key | str) -> Envelope:
        """An event ready for the outbox, in the running trace.

        source is the service that says it, subject the id of what it is about, key whose it is.
        """
        line = self._line(type(event))
        return Envelope(
            topic=line.topic,
            key=str(key),
            type=line.event.TYPE,
            version=line.event.MAJOR,
            payload=line.encode(event),
            source=source,
            subject=subject,
            traceparent=current_traceparent(),
        )

    def decode_known(
        self, headers: Mapping[str, bytes], value: bytes | None, readers: Container[type[Any]]
    ) -> Any | None:
        """The event in a record, when its schema was met before; else None: then `await decode(...)`.

        readers are the event classes wanted (a HANDLERS table will do). Raises UnknownEvent and Undecodable as
        `decode` does.
        """
        line = self._find(headers, readers)
        schema_id, whole = framed(value)
        reader = line.readers.get(schema_id)
        return None if reader is None else line.decode(reader, whole)

    async def decode(self, headers: Mapping[str, bytes], value: bytes | None, readers: Container[type[Any]]) -> Any:
        """The event in a record, whatever minor version it was written in; fields we do not know are dropped.

        readers are the event classes wanted (a HANDLERS table will do). Raises UnknownEvent when the headers
        name another event or the registry has no such schema id, Undecodable when the bytes do not hold what
        the headers claim, Outage when the registry had to be asked and is away.
        """
        line = self._find(headers, readers)
        schema_id, whole = framed(value)
        if schema_id not in line.readers:
            line.read_with(schema_id, await self._registry.schema_by_id(schema_id))
        return line.decode(line.readers[schema_id], whole)

    async def _ask(self, lines: Sequence[Line]) -> dict[learnt.Name, int]:
        ids = await asyncio.gather(*(self._registry.lookup(line.subject, line.source) for line in lines))
        return {line.name: schema_id for line, schema_id in zip(lines, ids, strict=True)}

    def _line(self, event: type[Any]) -> Line:
        try:
            return self._lines[event]
        except KeyError:
            raise Misconfigured(f"{event.__name__} is not among this codec's contracts.") from None

    def _find(self, headers: Mapping[str, bytes], readers: Container[type[Any]]) -> Line:
        # Compared as bytes: headers are untrusted, and only an exact match is a reader's.
        line = self._by_headers.get((headers.get(TYPE, b""), headers.get(VERSION, b"")))
        if line is None or line.event not in readers:
            raise UnknownEvent(f"No reader for {_shown(headers, TYPE)}, {_shown(headers, VERSION)}.")
        return line


def _shown(headers: Mapping[str, bytes], name: str) -> str:
    return f"{name}={headers[name][:80]!r}" if name in headers else f"no {name}"
