"""One event's way to bytes and back: the Confluent framing around an Avro record."""

import struct
from dataclasses import fields
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer, validate
from fastavro.schema import SchemaParseException, to_parsing_canonical_form
from fastavro.validation import ValidationError

from messaging import learnt
from messaging.errors import Misconfigured, Outage, Undecodable
from messaging.records import conversion
from messaging.registry import Schema

_FRAME = struct.Struct(">BI")
_MAGIC = 0


class Line:
    """One event's way to bytes and back: its own schema, and the writers' schemas met so far, by id."""

    def __init__(self, event: type[Any], topic: str, subject: str, schema: Schema) -> None:
        self.event = event
        self.topic = topic
        self.subject = subject
        self.source = schema
        self.name = learnt.name(subject, schema)
        self.expected = False
        self.writes: int | None = None
        """The schema id that it writes with."""
        self.readers: dict[int, tuple[Schema, Schema | None]] = {}
        self._own: Schema = _parsed(schema)
        self._record: str = self._own["name"]
        self._canonical = to_parsing_canonical_form(self._own)
        self._frame = b""
        self._texts = all(field["type"] == "string" for field in self._own["fields"])
        """Then one look at the values' types tells that they fit."""
        names = [field["name"] for field in schema["fields"]]
        if names != [field.name for field in fields(self.event)]:
            raise Misconfigured(f"{self.event.__name__} and its newest Avro schema differ in their fields.")
        self._to_record, self._from_record = conversion(self.event)

    def write_with(self, schema_id: int) -> None:
        """From here on. What was written under another id is read as it was."""
        self.writes = schema_id
        self._frame = _FRAME.pack(_MAGIC, schema_id)
        self.readers[schema_id] = (self._own, None)

    def read_with(self, schema_id: int, written: Schema) -> None:
        """What has this id was written so. Raises Undecodable when it is not this event, or no usable schema."""
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
        """As `Codec.encode`."""
        if self.writes is None:
            if self.expected:
                raise Outage(f"The registry has not told the schema id of {self.event.__name__} yet.", "registry")
            raise Misconfigured(f"The codec was not prepared to write {self.event.__name__}.")
        buffer = BytesIO()
        buffer.write(self._frame)
        try:
            record = self._to_record(event)
            # The writer alone would cut 1.5 to 1 and let 2**31 through as an int. Asked without errors first:
            # they are made up for every branch of a union that does not fit, which takes longest of all.
            texts = self._texts and set(map(type, record.values())) == {str}
            if not texts and not validate(record, self._own, raise_errors=False):
                validate(record, self._own)
            schemaless_writer(buffer, self._own, record)
        except ValidationError as error:
            raise ValueError(f"{self.event.__name__} does not fit its schema: {error.errors[0]}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.event.__name__} does not fit its schema: {error}") from error
        return buffer.getvalue()

    def decode(self, reader: tuple[Schema, Schema | None], value: bytes) -> Any:
        """The event in a framed value, by one of `readers`. Raises Undecodable."""
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


def framed(value: bytes | None) -> tuple[int, bytes]:
    """The schema id a value begins with, and the value. Raises Undecodable for any other framing."""
    if value is None or len(value) < _FRAME.size:
        raise Undecodable("The value is too short to name a schema.")
    magic, schema_id = _FRAME.unpack_from(value)
    if magic != _MAGIC:
        raise Undecodable(f"The value begins with byte {magic}, not with a schema's id.")
    return schema_id, value


def _parsed(schema: Schema) -> Schema:
    parsed = parse_schema(schema)
    if not isinstance(parsed, dict):
        raise TypeError("an event's schema is a record")
    return parsed
