"""GET /docs: the API of a face as one page of our own, out of its OpenAPI document. It needs no other server."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

PATH = "/docs"

_REFERENCE = re.compile(r'\{\s*"\$ref": "#/components/schemas/([^"]+)"\s*\}')

_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, as the page shows it. `bodies` are (media type, schema as HTML), `answers` (status, what, schema)."""

    method: str
    path: str
    summary: str
    secured: bool
    parameters: list[dict[str, Any]]
    bodies: list[tuple[str, Markup]]
    answers: list[tuple[str, str, Markup]]


def install(app: FastAPI) -> None:
    """Serve the page."""

    @app.get(PATH, include_in_schema=False)
    async def reference() -> HTMLResponse:
        document = app.openapi()
        page = _PAGES.get_template("reference.html").render(
            title=app.title, description=app.description, operations=operations(document), schemas=schemas(document)
        )
        return HTMLResponse(page)


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Pure: every operation in the order of the document."""
    return [
        _operation(method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def schemas(document: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Pure: every schema that has a name, in order, with its JSON as HTML. The rest links to it."""
    return [(name, shown(schema)) for name, schema in sorted(document["components"]["schemas"].items())]


def shown(schema: Mapping[str, Any]) -> Markup:
    """Pure: a schema as JSON in HTML; where it only names another, there is a link to `#schema-<name>`."""
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    pieces = [escape(piece) for piece in _REFERENCE.split(text)]
    # Every second piece is a name.
    pieces[1::2] = [Markup('<a href="#schema-{0}">{0}</a>').format(name) for name in pieces[1::2]]
    return Markup("").join(pieces)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Operation:
    bodies = operation.get("requestBody", {}).get("content", {})
    return Operation(
        method=method,
        path=path,
        summary=operation.get("summary", ""),
        secured=bool(operation.get("security")),
        parameters=operation.get("parameters", []),
        bodies=[(kind, shown(content.get("schema", {}))) for kind, content in bodies.items()],
        answers=[
            (
                status,
                answer.get("description", ""),
                Markup("\n").join(shown(c["schema"]) for c in answer.get("content", {}).values() if c.get("schema")),
            )
            for status, answer in operation["responses"].items()
        ],
    )
