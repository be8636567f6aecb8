import asyncio
import dataclasses
import io
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fastavro import parse_schema, schemaless_writer

from messaging.errors import Misconfigured, UnknownEvent
from messaging.registry import Registry, Schema
from schemas import catalog, events
from schemas.catalog import Version

EXAMPLES = [
    (event, version, path)
    for event in events.ALL
    for version in catalog.line(event.TYPE, event.MAJOR)
    for path in sorted(version.examples.glob("*.json"))
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThingFailed:
    """An event of nobody's."""

    TYPE: ClassVar[str] = "thing.failed"
    MAJOR: ClassVar[int] = 1
    TOPIC: ClassVar[str] = "things.events"


class Shelf(Registry):
    """A registry without a server, holding one schema per id."""

    def __init__(self, *schemas: Schema) -> None:
        super().__init__("http://127.0.0.1:9")
        self._schemas = dict(enumerate(schemas, start=1))

    async def schema_by_id(self, schema_id: int) -> Schema:
        return self._schemas[schema_id]

    async def lookup(self, subject: str, schema: Schema) -> int:
        return next(number for number, known in self._schemas.items() if known == schema)


@pytest.mark.parametrize(("event", "version", "path"), EXAMPLES, ids=lambda value: getattr(value, "stem", str(value)))
def test_every_example_of_a_major_becomes_its_event(event: type[Any], version: Version, path: Path) -> None:
    example = json.loads(path.read_text("utf-8"))
    buffer = io.BytesIO()
    buffer.write(b"\x00\x00\x00\x00\x01")
    schemaless_writer(buffer, parse_schema(version.schema()), example)
    codec = catalog.codec(Shelf(version.schema()))
    headers = {"ce_type": event.TYPE.encode(), "event_version": str(event.MAJOR).encode()}
    decoded = asyncio.run(codec.decode(headers, buffer.getvalue(), {event}))
    assert type(decoded) is event
    said = json.loads(json.dumps(dataclasses.asdict(decoded)))
    known = [name for name in example if name in said]
    assert known
    assert {name: said[name] for name in known} == {name: example[name] for name in known}


async def test_the_codec_of_a_process_knows_every_event() -> None:
    codec = catalog.codec(Shelf(*(contract.schema for contract in catalog.contracts())))
    await codec.prepare(events.ALL)
    failed = events.DocumentFailed(
        document_id="d-1", tenant="acme", sender="nadia", reason="malformed_pdf", error="Damaged.", attempts=1
    )
    envelope = codec.envelope(failed, source="documents", subject="d-1", key="acme:nadia")
    assert (envelope.topic, envelope.type) == ("documents.events", "document.failed")
    headers = {"ce_type": b"document.failed", "event_version": str(envelope.version).encode()}
    assert codec.decode_known(headers, envelope.payload, events.ALL) == failed
    with pytest.raises(UnknownEvent):
        codec.decode_known(headers | {"event_version": b"99"}, envelope.payload, events.ALL)


def test_subjects_are_named_for_topic_and_record() -> None:
    subjects = {contract.event: contract.subject for contract in catalog.contracts()}
    assert subjects[events.DocumentReceivedV1] == "documents.events-workbot.documents.v1.DocumentReceived"
    assert subjects[events.DocumentReceived] == "documents.events-workbot.documents.v2.DocumentReceived"
    assert [subjects[event] for event in events.ALL] == [
        f"{event.TOPIC}-{version.schema()['namespace']}.{version.schema()['name']}"
        for event in events.ALL
        for version in catalog.line(event.TYPE, event.MAJOR)[:1]
    ]


def test_versions_come_by_age_and_the_newest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    first, tenth = (
        {"type": "record", "name": "ThingFailed", "namespace": "n.v1", "doc": doc, "fields": []}
        for doc in ("first", "tenth")
    )
    folder = tmp_path / "avro" / "thing.failed"
    folder.mkdir(parents=True)
    for minor in (*range(9), 10, 9):
        (folder / f"v1.{minor}.avsc").write_text(json.dumps(tenth if minor == 10 else first))
    assert [version.minor for version in catalog.line("thing.failed", 1)] == list(range(11))
    monkeypatch.setattr(events, "ALL", (ThingFailed,))
    assert [contract.schema["doc"] for contract in catalog.contracts()] == ["tenth"]


@pytest.mark.parametrize("name", ["v1.avsc", "v01.0.avsc", "v0.1.avsc", "v1.0.json", "draft.avsc"])
def test_a_file_with_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    (tmp_path / "avro" / "document.failed").mkdir(parents=True)
    (tmp_path / "avro" / "document.failed" / name).write_text("{}")
    with pytest.raises(Misconfigured, match=name):
        catalog.versions()


def test_an_event_without_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    with pytest.raises(Misconfigured, match=r"DocumentReadingRequested has no file avro/document\.reading_requested"):
        catalog.contracts()


@pytest.mark.parametrize("text", ["", "{", "[]", '"string"'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    version = Version("document.failed", 1, 0)
    version.file.parent.mkdir(parents=True)
    version.file.write_text(text)
    with pytest.raises(Misconfigured, match=r"document\.failed v1\.0"):
        version.schema()
