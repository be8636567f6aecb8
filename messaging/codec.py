"""Events as bytes: Avro in the Confluent framing (a zero byte, the schema's id in four bytes, the value).

The codec is told which events exist. After the first use of a schema id, encoding and decoding do no I/O.
"""

import asyncio
import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any

import structlog
from fastavro import parse_schema, schemaless_reader, schemaless_writer, validate
from fastavro.schema import SchemaParseException, to_parsing_canonical_form
from fastavro.validation import ValidationError

from messaging import learnt
from messaging.errors import Misconfigured, Outage, Undecodable, UnknownEvent, reason
from messaging.message import TYPE, VERSION, Envelope, Key
from messaging.records import conversion
from messaging.registry import Registry, Schema
from messaging.telemetry import current_traceparent

_FRAME = struct.Struct(">BI")
_MAGIC = 0

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
        self._lines = {contract.event: _Line(contract) for contract in contracts}
        self._by_headers = {
            (line.event.TYPE.encode(), str(line.event.MAJOR).encode()): line for line in self._lines.values()
        }

    def expect(self, events: Iterable[type[Any]]) -> None:
        """Until `prepare` has come through for these, to write one is an Outage, no fault of the caller."""
        for event in events:
            self._line(event).expected = True

    def prepared(self) -> bool:
        """Whether all that is expected can be written."""
        return all(line.can_write for line in self._lines.values() if line.expected)

    async def prepare(self, events: Iterable[type[Any]], kept: learnt.Learnt | None = None) -> None:
        """Learn the schema ids of the events this process writes; what is kept of them is used only in an outage.

        Raises Misconfigured when one is not registered, Outage when the registry is away and an id is not kept.
        """
        lines = [self._line(event) for event in events]
        try:
            ids = await asyncio.gather(*(self._registry.lookup(line.subject, line.source) for line in lines))
        except Outage as outage:
            known = {} if kept is None else await kept.find([line.name for line in lines])
            if any(line.name not in known for line in lines):
                raise
            ids = [known[line.name] for line in lines]
            log.warning("codec.uses_kept_ids", error=reason(outage))
        else:
            if kept is not None:
                await kept.keep({line.name: schema_id for line, schema_id in zip(lines, ids, strict=True)})
        for line, schema_id in zip(lines, ids, strict=True):
            line.write_with(schema_id)

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
        schema_id, framed = _framed(value)
        reader = line.readers.get(schema_id)
        return None if reader is None else line.decode(reader, framed)

    async def decode(self, headers: Mapping[str, bytes], value: bytes | None, readers: Container[type[Any]]) -> Any:
        """The event in a record, whatever minor version it was written in; fields we do not know are dropped.

        readers are the event classes wanted (a HANDLERS table will do). Raises UnknownEvent when the headers
        name another event or the registry has no such schema id, Undecodable when the bytes do not hold what
        the headers claim, Outage when the registry had to be asked and is away.
        """
        line = self._find(headers, readers)
        schema_id, framed = _framed(value)
        if schema_id not in line.readers:
            line.read_with(schema_id, await self._registry.schema_by_id(schema_id))
        return line.decode(line.readers[schema_id], framed)

    def _line(self, event: type[Any]) -> "_Line":
        try:
            return self._lines[event]
        except KeyError:
            raise Misconfigured(f"{event.__name__} is not among this codec's contracts.") from None

    def _find(self, headers: Mapping[str, bytes], readers: Container[type[Any]]) -> "_Line":
        # Compared as bytes: headers are untrusted, and only an exact match is a reader's.
        line = self._by_headers.get((headers.get(TYPE, b""), headers.get(VERSION, b"")))
        if line is None or line.event not in readers:
            raise UnknownEvent(f"No reader for {_shown(headers, TYPE)}, {_shown(headers, VERSION)}.")
        return line


class _Line:
    """One event's way to bytes and back: its own schema, and the writers' schemas met so far, by id."""

    def __init__(self, contract: Contract) -> None:
        self.event = contract.event
        self.topic = contract.topic
        self.subject = contract.subject
        self.source = contract.schema
        self.name = learnt.name(contract.subject, contract.schema)
        self.expected = False
        self.readers: dict[int, tuple[Schema, Schema | None]] = {}
        self._own: Schema = _parsed(contract.schema)
        self._record: str = self._own["name"]
        self._canonical = to_parsing_canonical_form(self._own)
        self._frame: bytes | None = None
        names = [field["name"] for field in contract.schema["fields"]]
        if names != [field.name for field in fields(self.event)]:
            raise Misconfigured(f"{self.event.__name__} and its newest Avro schema differ in their fields.")
        self._to_record, self._from_record = conversion(self.event)

    @property
    def can_write(self) -> bool:
        return self._frame is not None

    def write_with(self, schema_id: int) -> None:
        self._frame = _FRAME.pack(_MAGIC, schema_id)
        self.readers[schema_id] = (self._own, None)

    def read_with(self, schema_id: int, written: Schema) -> None:
        try:
            writer = _parsed(written)
        except (SchemaParseException, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Undecodable(f"Schema {schema_id} is not a usable Avro schema.") from error
        # The library resolves records by their short name, which v1 and v2 share.
        if writer.get("name") != self._record:
            raise Undecodable(
                f"The headers say {self.event.TYPE} v{self.event.MAJOR}, the value is a {writer.get('name')}."
            )
        same = to_parsing_canonical_form(writer) == self._canonical
        self.readers[schema_id] = (writer, None if same else self._own)

    def encode(self, event: object) -> bytes:
        if self._frame is None:
            if self.expected:
                raise Outage(f"The registry has not told the schema id of {self.event.__name__} yet.", "registry")
            raise Misconfigured(f"The codec was not prepared to write {self.event.__name__}.")
        buffer = BytesIO()
        buffer.write(self._frame)
        try:
            record = self._to_record(event)
            # The writer alone would cut 1.5 to 1 and let 2**31 through as an int. Asked without errors first:
            # they are made up for every branch of a union that does not fit, which takes longest of all.
            if not validate(record, self._own, raise_errors=False):
                validate(record, self._own)
            schemaless_writer(buffer, self._own, record)
        except ValidationError as error:
            raise ValueError(f"{self.event.__name__} does not fit its schema: {error.errors[0]}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.event.__name__} does not fit its schema: {error}") from error
        return buffer.getvalue()

    def decode(self, reader: tuple[Schema, Schema | None], value: bytes) -> Any:
        buffer = BytesIO(value)
        buffer.seek(_FRAME.size)
        try:
            event = self._from_record(schemaless_reader(buffer, *reader))
        except Exception as error:  # the library raises whatever the garbage makes it stumble over
            detail = str(error)[:300] or type(error).__name__
            raise Undecodable(f"The value is not a {self._record}: {detail}") from error
        if buffer.tell() != len(value):
            raise Undecodable(f"{len(value) - buffer.tell()} bytes follow the {self._record} in the value.")
        return event


def _framed(value: bytes | None) -> tuple[int, bytes]:
    """The schema id a value begins with, and the value. Raises Undecodable for any other framing."""
    if value is None or len(value) < _FRAME.size:
        raise Undecodable("The value is too short to name a schema.")
    magic, schema_id = _FRAME.unpack_from(value)
    if magic != _MAGIC:
        raise Undecodable(f"The value begins with byte {magic}, not with a schema's id.")
    return schema_id, value


def _shown(headers: Mapping[str, bytes], name: str) -> str:
    return f"{name}={headers[name][:80]!r}" if name in headers else f"no {name}"


def _parsed(schema: Schema) -> Schema:
    parsed = parse_schema(schema)
    if not isinstance(parsed, dict):
        raise TypeError("an event's schema is a record")
    return parsed
