"""The real versions of the real events, on the real registry: what it refuses, what it takes, who reads what."""

import dataclasses
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from messaging.codec import Codec, Contract
from messaging.errors import Misconfigured, Undecodable, UnknownEvent
from messaging.registry import Registry, Schema
from schemas import catalog, compatibility, events
from schemas.catalog import Version
from tests.fixtures.framed import framed
from tests.fixtures.stack import Infra

TWO_MAJORS = (events.DocumentReceivedV1, events.DocumentReceived)


@pytest.fixture
def topic() -> str:
    """A name that no subject of the registry begins with."""
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
async def registry(infra: Infra) -> AsyncIterator[Registry]:
    opened = Registry(infra.registry_url)
    yield opened
    await opened.close()


def subject(topic: str, schema: Schema) -> str:
    return Contract(object, topic, schema).subject


def headers(type_: str, major: int) -> dict[str, bytes]:
    return {"ce_type": type_.encode(), "event_version": str(major).encode()}


def example(version: Version) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sorted(version.examples.glob("*.json"))[0].read_text("utf-8"))
    return found


def test_there_is_a_compatible_minor_and_a_breaking_major() -> None:
    """What the other tests here stand on."""
    assert [str(version) for version in catalog.line("request.created", 1)][:2] == [
        "request.created v1.0",
        "request.created v1.1",
    ]
    first, second = (catalog.line("document.received", major)[-1].schema() for major in (1, 2))
    assert compatibility.faults([first, {**second, "namespace": first["namespace"]}]) == [
        "version 0 cannot read version 1: size_bytes: null is not read as long",
    ]


async def test_a_breaking_change_is_refused_within_its_major_and_taken_as_the_next(
    registry: Registry, topic: str
) -> None:
    first, second = (catalog.line("document.received", major)[-1].schema() for major in (1, 2))
    await registry.register(subject(topic, first), first)
    within = {**second, "namespace": first["namespace"]}
    assert subject(topic, within) == subject(topic, first)
    with pytest.raises(Misconfigured, match=r"refuses a version of .*v1\.DocumentReceived \(409\)"):
        await registry.register(subject(topic, within), within)
    taken = await registry.register(subject(topic, second), second)
    assert await registry.lookup(subject(topic, second), second) == taken


async def test_the_reader_is_chosen_by_type_and_major(registry: Registry, topic: str) -> None:
    """Both records are named DocumentReceived; each comes out as its own class, and never as the other's."""
    known = {contract.event: contract.schema for contract in catalog.contracts()}
    codec = Codec(registry, [Contract(event, topic, known[event]) for event in TWO_MAJORS])
    values = {}
    for event in TWO_MAJORS:
        (version,) = catalog.line(event.TYPE, event.MAJOR)
        schema_id = await registry.register(subject(topic, known[event]), known[event])
        values[event] = framed(schema_id, known[event], example(version))
    for event in TWO_MAJORS:
        read = await codec.decode(headers(event.TYPE, event.MAJOR), values[event], TWO_MAJORS)
        assert type(read) is event
        with pytest.raises(UnknownEvent):
            await codec.decode(headers(event.TYPE, event.MAJOR), values[event], set(TWO_MAJORS) - {event})
        with pytest.raises(UnknownEvent):
            await codec.decode(headers(event.TYPE, 3), values[event], TWO_MAJORS)
    for mine, other in (TWO_MAJORS, TWO_MAJORS[::-1]):
        with pytest.raises(Undecodable):
            await codec.decode(headers(mine.TYPE, mine.MAJOR), values[other], TWO_MAJORS)


async def test_every_writer_is_read_by_every_reader_over_the_registry(registry: Registry, topic: str) -> None:
    """Minor by minor, and once with a minor that only the registry knows: it was deployed after these readers."""
    for event in events.ALL:
        line = catalog.line(event.TYPE, event.MAJOR)
        later = json.loads(json.dumps(line[-1].schema()))
        later["fields"].append({"name": "added_later", "type": ["null", "string"], "default": None, "doc": "New."})
        # The newest minor has our class; an older one, read by a build of its time, has one of its own fields.
        readers = [event, *(_as_of(event, version) for version in line[:-1])]
        schemas = [line[-1].schema(), *(version.schema() for version in line[:-1])]
        writers = [(version.schema(), example(version)) for version in line]
        writers.append((later, example(line[-1]) | {"added_later": "for whoever knows it"}))
        for schema, record in writers:
            schema_id = await registry.register(subject(topic, schema), schema)
            value = framed(schema_id, schema, record)
            for reader, own in zip(readers, schemas, strict=True):
                codec = Codec(registry, [Contract(reader, topic, own)])
                read = await codec.decode(headers(event.TYPE, event.MAJOR), value, {reader})
                assert type(read) is reader
                assert read.tenant == record["tenant"]
                assert not hasattr(read, "added_later")


def _as_of(event: type[Any], version: Version) -> type[Any]:
    """The event's class as it was when that version was the newest: without the fields that came since."""
    names = [field["name"] for field in version.schema()["fields"]]
    fields = [
        (field.name, field.type)
        if field.default is dataclasses.MISSING
        else (field.name, field.type, dataclasses.field(default=field.default))
        for field in dataclasses.fields(event)
        if field.name in names
    ]
    namespace = {"TYPE": event.TYPE, "MAJOR": event.MAJOR, "__module__": event.__module__}
    return dataclasses.make_dataclass(event.__name__, fields, namespace=namespace, frozen=True, kw_only=True)
