"""GET /docs: the API of a face as one page of our own, out of its OpenAPI document. It needs no other server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

PATH = "/docs"

_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, as the page shows it. `bodies` are (media type, schema as JSON), `answers` (status, what, schema)."""

    method: str
    path: str
    summary: str
    secured: bool
    parameters: list[dict[str, Any]]
    bodies: list[tuple[str, str]]
    answers: list[tuple[str, str, str]]


def install(app: FastAPI) -> None:
    """Serve the page."""

    @app.get(PATH, include_in_schema=False)
    async def reference() -> HTMLResponse:
        document = app.openapi()
        page = _PAGES.get_template("reference.html").render(title=app.title, operations=operations(document))
        return HTMLResponse(page)


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Pure: every operation in the order of the document."""
    return [
        _operation(document, method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _operation(document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> Operation:
    bodies = operation.get("requestBody", {}).get("content", {})
    return Operation(
        method=method,
        path=path,
        summary=operation.get("summary", ""),
        secured=bool(operation.get("security")),
        parameters=operation.get("parameters", []),
        bodies=[(kind, _shown(document, content.get("schema", {}))) for kind, content in bodies.items()],
        answers=[
            (
                status,
                answer.get("description", ""),
                "\n".join(
                    _shown(document, c["schema"]) for c in answer.get("content", {}).values() if c.get("schema")
                ),
            )
            for status, answer in operation["responses"].items()
        ],
    )


def _shown(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A schema as JSON; one that is only named is looked up, once."""
    name = schema.get("$ref", "").removeprefix("#/components/schemas/")
    return json.dumps(document["components"]["schemas"][name] if name else schema, indent=2, ensure_ascii=False)
