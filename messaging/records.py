"""Dataclasses as plain records and back, the way Avro libraries take and give them."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from messaging.errors import Misconfigured

Convert = Callable[[Any], Any]


def conversion(kind: type[Any]) -> tuple[Convert, Convert]:
    """How an instance of a dataclass becomes a record, and a record an instance; worked out once per class.

    Fields may be str, int, float, bool, bytes, dataclasses, tuples of one of these, and any of these or None.
    Raises Misconfigured for a field of another type.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    inner = {name: pair for name in names if (pair := _of_type(hints[name])) is not None}
    values: Convert = attrgetter(*names) if len(names) > 1 else lambda event: tuple(getattr(event, n) for n in names)

    def to_record(event: Any) -> dict[str, Any]:
        record = dict(zip(names, values(event), strict=True))
        for name, (outward, _) in inner.items():
            record[name] = outward(record[name])
        return record

    def from_record(record: dict[str, Any]) -> Any:
        for name, (_, inward) in inner.items():
            record[name] = inward(record[name])
        return kind(**record)

    return to_record, from_record


def _of_type(hint: Any) -> tuple[Convert, Convert] | None:
    """The way out and the way in for a field's type; None when the value stays as it is."""
    if hint in (str, int, float, bool, bytes):
        return None
    if is_dataclass(hint) and isinstance(hint, type):
        return conversion(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = _of_type(arguments[0])
        if inner is None:
            return list, tuple
        outward, inward = inner
        return lambda items: [outward(item) for item in items], lambda items: tuple(map(inward, items))
    if origin in (Union, UnionType) and len(arguments) == 2 and arguments[1] is NoneType:
        inner = _of_type(arguments[0])
        if inner is None:
            return None
        out, into = inner
        return lambda value: None if value is None else out(value), lambda v: None if v is None else into(v)
    raise Misconfigured(f"There is no Avro counterpart for {hint!r}.")
