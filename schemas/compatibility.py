"""Pure: may what was written with one schema be read with another (Avro 1.12, "Schema Resolution")?

The registry is asked the same at deploy; here the answer comes without one, and says where it fails.
"""

from collections.abc import Iterator, Sequence
from typing import Any

# What a reader takes for a written primitive, itself aside.
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}

_KINDS = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"} | {
    "record",
    "enum",
    "array",
    "map",
    "fixed",
}


def faults(line: Sequence[dict[str, Any]]) -> list[str]:
    """Why versions of one major are not FULL_TRANSITIVE: every pair, both ways. Empty when they are."""
    return [
        f"version {r} cannot read version {w}: {fault}"
        for w, writer in enumerate(line)
        for r, reader in enumerate(line)
        if w != r
        for fault in unreadable(writer, reader)
    ]


def unreadable(writer: Any, reader: Any, at: str = "") -> list[str]:
    """What keeps `reader` from reading values written with `writer`, each with its place; empty when nothing does.

    Named types are written out where they are used, as in all files here; raises ValueError for a mere name.
    """
    return list(_unreadable(writer, reader, at))


def _unreadable(writer: Any, reader: Any, at: str) -> Iterator[str]:
    if isinstance(writer, list):
        for branch in writer:
            yield from _unreadable(branch, reader, at)
        return
    if isinstance(reader, list):
        if not any(not unreadable(writer, branch, at) for branch in reader):
            yield f"{at or 'value'}: no branch takes {_kind(writer)}"
        return
    written, read = _kind(writer), _kind(reader)
    if written != read:
        if read not in _PROMOTIONS.get(written, ()):
            yield f"{at or 'value'}: {written} is not read as {read}"
    elif written == "record":
        yield from _unreadable_record(writer, reader, at)
    elif written == "array":
        yield from _unreadable(writer["items"], reader["items"], f"{at}[]")
    elif written == "map":
        yield from _unreadable(writer["values"], reader["values"], f"{at}{{}}")
    elif written == "enum":
        unknown = set(writer["symbols"]) - set(reader["symbols"])
        if unknown and "default" not in reader:
            yield f"{at}: {', '.join(sorted(unknown))} unknown to the reader, which has no default"
    elif written == "fixed" and writer["size"] != reader["size"]:
        yield f"{at}: another size"


def _unreadable_record(writer: dict[str, Any], reader: dict[str, Any], at: str) -> Iterator[str]:
    if writer["name"].rpartition(".")[2] != reader["name"].rpartition(".")[2]:
        yield f"{at or 'value'}: record {writer['name']} is not record {reader['name']}"
        return
    written = {field["name"]: field["type"] for field in writer["fields"]}
    for field in reader["fields"]:
        name = field["name"]
        place = f"{at}.{name}" if at else name
        if name in written:
            yield from _unreadable(written[name], field["type"], place)
        elif "default" not in field:
            yield f"{place}: not written, and without a default"


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is not a type written out; only {', '.join(sorted(_KINDS))} are")
    return str(kind)
