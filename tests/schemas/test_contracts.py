"""The rules that keep every version of every event readable by every other. Pure: no server is asked."""

import dataclasses
import hashlib
import io
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer, validate

from messaging.codec import Contract
from schemas import catalog, compatibility, events, topics
from schemas.catalog import Version

VERSIONS = catalog.versions()
EXAMPLES = [(version, path) for version in VERSIONS for path in sorted(version.examples.glob("*.json"))]
CONTRACTS = catalog.contracts()
TOPICS = topics.load()

PRIMITIVES = {"string": str, "int": int, "long": int, "double": float, "boolean": bool, "bytes": bytes}


def shown(value: object) -> str:
    return value.stem if isinstance(value, Path) else str(value)


def written(schema: dict[str, Any], value: Any) -> bytes:
    buffer = io.BytesIO()
    schemaless_writer(buffer, parse_schema(schema), value, strict=True)
    return buffer.getvalue()


def fields_of(schema: dict[str, Any]) -> typing.Iterator[tuple[str, dict[str, Any]]]:
    """Every field of a record and of the records inside it, with the name of its record."""
    for field in schema["fields"]:
        yield schema["name"], field
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "array" and isinstance(kind["items"], dict):
            yield from fields_of(kind["items"])


def test_every_event_has_versions_without_a_gap() -> None:
    lines: dict[str, dict[int, list[int]]] = {}
    for version in VERSIONS:
        lines.setdefault(version.type, {}).setdefault(version.major, []).append(version.minor)
    assert lines
    for type_, majors in lines.items():
        assert sorted(majors) == list(range(1, len(majors) + 1)), f"{type_}: a major is missing"
        for major, minors in majors.items():
            assert minors == list(range(len(minors))), f"{type_} v{major}: a minor is missing"


def test_every_file_belongs_to_an_event_that_travels() -> None:
    listed = {event for name in TOPICS for event in TOPICS[name].events}
    assert {version.type for version in VERSIONS} == listed, "schemas/topics.toml and schemas/avro differ"
    newest = {version.type: version.major for version in VERSIONS}
    assert newest == {event.TYPE: event.MAJOR for event in events.ALL}, "schemas/events.py and schemas/avro differ"


def test_every_example_belongs_to_a_version_and_every_version_has_one() -> None:
    folder = catalog.ROOT / "examples"
    strays = [path for path in folder.rglob("*") if path.is_file()]
    for version in VERSIONS:
        shown_by = sorted(version.examples.glob("*.json"))
        assert shown_by, f"{version} has no example"
        strays = [path for path in strays if path not in shown_by]
    assert not strays
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", path.stem) for _, path in EXAMPLES)


def test_files_that_landed_have_not_changed() -> None:
    """A version is a new file with a new line in digests.txt. A line that changes or goes is what a reviewer
    must not let through: a digest rewritten together with its file is the one thing this cannot see."""
    now = catalog.digests()
    lines = catalog.DIGESTS.read_text("ascii").splitlines()
    landed = {path: digest for digest, path in (line.split("  ") for line in lines)}
    assert len(landed) == len(lines), "a path is listed twice"
    changed = [path for path, digest in landed.items() if now.get(path) != digest]
    assert not changed, f"these files changed or went after they landed; make a new version instead: {changed}"
    new = [f"{digest}  {path}" for path, digest in now.items() if path not in landed]
    if new:
        # Without a traceback, whose marks would stand before each line.
        pytest.fail("add to schemas/digests.txt:\n" + "\n".join(new), pytrace=False)


def test_a_changed_file_has_another_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "avro" / "thing.happened" / "v1.0.avsc"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    file.write_text("{}")
    before = catalog.digests()
    assert before == {"avro/thing.happened/v1.0.avsc": hashlib.sha256(b"{}").hexdigest()}
    file.write_text("{ }")
    assert catalog.digests() != before


@pytest.mark.parametrize(("version", "path"), EXAMPLES, ids=shown)
def test_an_example_decodes_under_its_own_schema_and_comes_back_whole(version: Version, path: Path) -> None:
    schema, example = version.schema(), json.loads(path.read_text("utf-8"))
    assert validate(example, parse_schema(schema), strict=True)
    value = written(schema, example)
    assert schemaless_reader(io.BytesIO(value), parse_schema(schema), None) == example


@pytest.mark.parametrize(("version", "path"), EXAMPLES, ids=shown)
def test_every_version_of_a_major_reads_the_example(version: Version, path: Path) -> None:
    value = written(version.schema(), json.loads(path.read_text("utf-8")))
    readers = catalog.line(version.type, version.major)
    assert version in readers
    for reader in readers:
        own = parse_schema(reader.schema())
        read = schemaless_reader(io.BytesIO(value), parse_schema(version.schema()), own)
        assert validate(read, own, strict=True), f"{reader} reads {version} as something that is not its own"


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.event.__name__)
def test_a_major_is_compatible_both_ways_over_all_its_versions(contract: Contract) -> None:
    line = [version.schema() for version in catalog.line(contract.event.TYPE, contract.event.MAJOR)]
    assert line
    assert compatibility.faults(line) == []


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.event.__name__)
def test_the_dataclass_is_its_newest_schema(contract: Contract) -> None:
    assert_same(contract.event, contract.schema)


def assert_same(kind: type[Any], schema: dict[str, Any]) -> None:
    hints = typing.get_type_hints(kind)
    ours = dataclasses.fields(kind)
    assert [field.name for field in ours] == [field["name"] for field in schema["fields"]]
    for mine, theirs in zip(ours, schema["fields"], strict=True):
        assert_same_type(hints[mine.name], theirs["type"])
        default = ... if mine.default is dataclasses.MISSING else mine.default
        assert default == theirs.get("default", ...), f"{kind.__name__}.{mine.name} has another default"


def assert_same_type(hint: Any, schema: Any) -> None:
    if isinstance(schema, list):
        assert isinstance(hint, types.UnionType)
        assert schema[0] == "null"
        inner, none = typing.get_args(hint)
        assert none is types.NoneType
        assert_same_type(inner, schema[1])
    elif isinstance(schema, dict) and schema["type"] == "array":
        inner, rest = typing.get_args(hint)
        assert typing.get_origin(hint) is tuple
        assert rest is ...
        assert_same_type(inner, schema["items"])
    elif isinstance(schema, dict):
        assert hint.__name__ == schema["name"]
        assert_same(hint, schema)
    else:
        assert hint is PRIMITIVES[schema]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_names_follow_the_rule(version: Version) -> None:
    schema = version.schema()
    home = next((name for name in TOPICS if version.type in TOPICS[name].events), None)
    assert home is not None, f"no topic in schemas/topics.toml carries {version.type}"
    words = re.split(r"[._]", version.type)
    assert schema["name"] == "".join(word.capitalize() for word in words)
    assert schema["namespace"] == f"workbot.{home.partition('.')[0]}.v{version.major}"
    for record, field in fields_of(schema):
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", record)
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", field["name"])


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_every_record_and_field_says_what_it_means(version: Version) -> None:
    schema = version.schema()
    assert schema["doc"]
    for record, field in fields_of(schema):
        assert field.get("doc"), f"{record}.{field['name']} has no doc"


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_a_schema_uses_only_what_every_tool_agrees_on(version: Version) -> None:
    """Primitives, arrays, records written out, and null-or-something with a default that is its first branch."""

    def check(kind: Any) -> None:
        if isinstance(kind, list):
            assert len(kind) == 2
            assert kind[0] == "null"
            check(kind[1])
        elif isinstance(kind, dict):
            assert kind["type"] in ("array", "record")
            if kind["type"] == "array":
                check(kind["items"])
        else:
            assert kind in PRIMITIVES

    for _, field in fields_of(version.schema()):
        check(field["type"])
        first = field["type"][0] if isinstance(field["type"], list) else field["type"]
        if "default" in field:
            assert validate(field["default"], parse_schema(first)), f"{field['name']}: default is not {first}"
        else:
            assert first != "null", f"{field['name']} may be null and has no default"


@pytest.mark.parametrize("event", events.ALL, ids=lambda event: event.__name__)
def test_an_event_travels_on_one_topic_that_lists_it(event: type[Any]) -> None:
    assert [name for name in TOPICS if event.TYPE in TOPICS[name].events] == [event.TOPIC]
    newest = max(version.major for version in VERSIONS if version.type == event.TYPE)
    name = "".join(word.capitalize() for word in re.split(r"[._]", event.TYPE))
    assert event.__name__ == (name if newest == event.MAJOR else f"{name}V{event.MAJOR}")
    assert event.__doc__
    assert not event.__doc__.startswith(event.__name__), "say when it happens"


def test_producers_and_consumers_are_services_of_this_house() -> None:
    house = Path(catalog.ROOT).parent / "services"
    named = {service for name in TOPICS for service in TOPICS[name].producers}
    named |= {consumer.service for name in TOPICS for consumer in TOPICS[name].consumers.values()}
    assert named
    assert {service for service in named if not (house / service / "__init__.py").is_file()} == set()
