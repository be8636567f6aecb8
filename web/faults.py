"""Pure: what the framework found wrong with a request, in words that say what to send instead."""

from collections.abc import Iterable, Mapping
from typing import Any

JSON_OBJECT = "Send a JSON object with Content-Type: application/json."
TIME = "Send a time with its zone, such as 2026-05-04T12:30:00Z or 2026-05-04T14:30:00+02:00."
PLUS = "In an address + is written %2B."

_BODY = ("body",)
_REMEDIES = {
    "missing": "It is required; send it.",
    "string_type": "Send a string.",
    "string_pattern_mismatch": "It holds a character that cannot be here; send it without.",
    "bool_type": "Send true or false.",
    "bool_parsing": "Send true or false.",
    "int_type": "Send a whole number.",
    "int_parsing": "Send a whole number.",
    "int_from_float": "Send a whole number.",
    "float_type": "Send a number.",
    "float_parsing": "Send a number.",
    "uuid_type": "Send an id as it was given to you, such as 0197c2a5-7b3e-7c55-8f6e-2f1f4a8e9b10.",
    "uuid_parsing": "Send an id as it was given to you, such as 0197c2a5-7b3e-7c55-8f6e-2f1f4a8e9b10.",
}
_WITH_A_FIGURE = {
    "greater_than_equal": "Send {ge} or more.",
    "greater_than": "Send more than {gt}.",
    "less_than_equal": "Send {le} or less.",
    "less_than": "Send less than {lt}.",
    "string_too_short": "Send at least {min_length} character(s).",
    "string_too_long": "Send at most {max_length} characters.",
    "literal_error": "Send {expected}.",
    "enum": "Send {expected}.",
}


def told(errors: Iterable[Mapping[str, Any]], body_fields: Iterable[str]) -> list[tuple[str, str]]:
    """(field, sentence) for each of pydantic's errors. `body_fields` are the names that the body may hold."""
    known = sorted(body_fields)
    return [(_field(error), _sentence(error, known)) for error in errors]


def _field(error: Mapping[str, Any]) -> str:
    # The first part of a location says where (query, path, body); the rest names the field, or a place in no JSON.
    inside = () if error["type"] == "json_invalid" else error["loc"][1:]
    return ".".join(str(part) for part in inside) or "body"


def _sentence(error: Mapping[str, Any], known: list[str]) -> str:
    kind, place = error["type"], tuple(error["loc"])
    if kind == "json_invalid":
        return f"The body is not JSON (at character {place[-1]}). {JSON_OBJECT}"
    if place == _BODY:
        return (
            f"The body is missing. {JSON_OBJECT}"
            if kind == "missing"
            else f"This body cannot be taken. {JSON_OBJECT}"
        )
    if kind == "extra_forbidden":
        # Deeper ones have names of their own.
        return f"There is no such field; there are {', '.join(known)}." if len(place) == 2 else "Send it without."
    if kind.startswith(("datetime_", "timezone_")):
        return f"{TIME} {PLUS}" if place[0] == "query" else TIME
    if kind in _WITH_A_FIGURE:
        return _WITH_A_FIGURE[kind].format_map(error["ctx"])
    return _REMEDIES.get(kind) or f"{error['msg']}."
