"""The OpenAPI document of a face: what FastAPI makes of the routes, with the problems that each can answer."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from web.problems import MEDIA_TYPE

SCHEMA = "Problem"

_PROBLEM: dict[str, Any] = {
    "title": SCHEMA,
    "description": "What went wrong (RFC 9457). Match on `type`; `detail` says what to do.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:workbot:problem:not-found"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "The parts of the request at fault; absent where none is, as with a limit or an outage.",
            "items": {
                "type": "object",
                "required": ["field", "detail"],
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
_VALIDATION = ("HTTPValidationError", "ValidationError")


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: problems that it answers of its own accord.

    Those that follow from its shape are added by themselves: see `describe`.
    """
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{SCHEMA}"}}},
        }
        for status in statuses
    }


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` tell of problems.

    By their shape, operations with a token answer 401, 500 and 503; with parameters or a body 422; with a part of
    the path as parameter 404; with a body 408, 413 and 415.
    """
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = made()
            for operation in _operations(document):
                operation["responses"] = _responses(operation)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name in _VALIDATION:
                schemas.pop(name, None)
            schemas[SCHEMA] = _PROBLEM
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def _responses(operation: Mapping[str, Any]) -> dict[str, Any]:
    parameters = operation.get("parameters", [])
    statuses: set[int] = set()
    if operation.get("security"):
        statuses |= {401, 500, 503}
    if parameters or "requestBody" in operation:
        statuses.add(422)
    if any(parameter["in"] == "path" for parameter in parameters):
        statuses.add(404)
    if "requestBody" in operation:
        statuses |= {408, 413, 415}
    own = {status: answer for status, answer in operation["responses"].items() if status != "422"}
    found = {str(status): answer for status, answer in answers(*statuses).items()} | own
    return {status: found[status] for status in sorted(found)}
