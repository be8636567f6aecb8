"""The pure check against cases whose verdict is known, and the live registry against the same ones."""

import asyncio
import copy
import io
import uuid
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from messaging.errors import Misconfigured
from messaging.registry import Registry
from schemas import compatibility
from tests.fixtures.stack import Infra

BASE: dict[str, Any] = {
    "type": "record",
    "name": "Thing",
    "namespace": "test.v1",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "parts",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Part",
                    "fields": [{"name": "name", "type": "string"}, {"name": "size", "type": "int", "default": 0}],
                },
            },
        },
    ],
}


def _changed(index: int | None = None, **change: Any) -> dict[str, Any]:
    schema = copy.deepcopy(BASE)
    if index is None:
        schema |= change
    else:
        schema["fields"][index] |= change
    return schema


def _with(*fields: dict[str, Any]) -> dict[str, Any]:
    return _changed(fields=[*copy.deepcopy(BASE["fields"]), *fields])


def _without(name: str) -> dict[str, Any]:
    return _changed(fields=[field for field in copy.deepcopy(BASE["fields"]) if field["name"] != name])


def _parts(*fields: dict[str, Any]) -> dict[str, Any]:
    return _changed(3, type={"type": "array", "items": {"type": "record", "name": "Part", "fields": list(fields)}})


_NAME = {"name": "name", "type": "string"}
_SIZE = {"name": "size", "type": "int", "default": 0}

CASES: list[tuple[str, dict[str, Any], str | None]] = [
    ("nothing but a doc", _changed(doc="what it is"), None),
    ("fields in another order", _changed(fields=copy.deepcopy(BASE["fields"])[::-1]), None),
    ("a field with a default", _with({"name": "extra", "type": "string", "default": ""}), None),
    ("a nullable field", _with({"name": "extra", "type": ["null", "long"], "default": None}), None),
    ("a field with a default goes", _without("note"), None),
    ("a nested field with a default", _parts(_NAME, _SIZE, {"name": "unit", "type": "string", "default": ""}), None),
    ("a nested field with a default goes", _parts(_NAME), None),
    ("a field without a default", _with({"name": "extra", "type": "string"}), "extra: not written"),
    ("a field without a default goes", _without("count"), "count: not written"),
    ("a wider number", _changed(1, type="long"), "count: long is not read as int"),
    ("another type", _changed(1, type="string"), "count: int is not read as string"),
    ("a field becomes nullable", _changed(1, type=["null", "int"]), "count: null is not read as int"),
    ("a nullable field becomes required", _changed(2, type="string", default=""), "note: null is not read as string"),
    ("another branch in a union", _changed(2, type=["null", "string", "int"]), "note: no branch takes int"),
    ("a renamed field", _changed(1, name="amount"), "amount: not written"),
    ("a renamed record", _changed(name="Something"), "record Something is not record Thing"),
    (
        "a nested field without a default",
        _parts(_NAME, _SIZE, {"name": "unit", "type": "string"}),
        "parts[].unit: not",
    ),
    ("a nested field of another type", _parts(_NAME, _SIZE | {"type": "double"}), "parts[].size: double is not"),
    ("an array becomes a map", _changed(3, type={"type": "map", "values": "string"}), "parts: array is not read as"),
]

VALUE = {"id": "1", "count": 3, "note": None, "parts": [{"name": "a", "size": 1}]}


@pytest.mark.parametrize(("name", "schema", "fault"), CASES, ids=[case[0] for case in CASES])
def test_verdicts(name: str, schema: dict[str, Any], fault: str | None) -> None:
    faults = compatibility.faults([BASE, schema])
    if fault is None:
        assert faults == []
    else:
        assert any(fault in found for found in faults), faults


@pytest.mark.parametrize("case", [case for case in CASES if case[2] is None], ids=lambda case: case[0])
def test_what_passes_is_really_read(case: tuple[str, dict[str, Any], None]) -> None:
    buffer = io.BytesIO()
    schemaless_writer(buffer, parse_schema(BASE), VALUE)
    buffer.seek(0)
    read = schemaless_reader(buffer, parse_schema(BASE), parse_schema(case[1]))
    assert read["id"] == "1"


def test_every_pair_counts_not_only_neighbours() -> None:
    """A field goes and comes back with another type: each step is fine, the first and the third are not."""
    first, second, third = (copy.deepcopy(BASE) for _ in range(3))
    first["fields"].append({"name": "extra", "type": "int", "default": 0})
    third["fields"].append({"name": "extra", "type": "string", "default": ""})
    assert compatibility.faults([first, second]) == []
    assert compatibility.faults([second, third]) == []
    assert compatibility.faults([first, second, third]) == [
        "version 2 cannot read version 0: extra: int is not read as string",
        "version 0 cannot read version 2: extra: string is not read as int",
    ]


def test_a_type_by_mere_name_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="'Elsewhere' is not a type written out"):
        compatibility.unreadable("Elsewhere", "Elsewhere")


async def test_the_live_registry_gives_the_same_verdicts(infra: Infra) -> None:
    registry = Registry(infra.registry_url)

    async def takes(schema: dict[str, Any]) -> bool:
        subject = f"t{uuid.uuid4().hex}-test.v1.Thing"
        await registry.register(subject, BASE)
        try:
            await registry.register(subject, schema)
        except Misconfigured:
            return False
        return True

    taken = await asyncio.gather(*(takes(schema) for _, schema, _ in CASES))
    await registry.close()
    ours = [fault is None for _, _, fault in CASES]
    assert [case[0] for case, theirs, mine in zip(CASES, taken, ours, strict=True) if theirs != mine] == []
