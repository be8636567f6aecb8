"""Errors as RFC 9457 problem details (``application/problem+json``). Every failure of an HTTP face becomes one."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any
from uuid import UUID

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from messaging.database import is_outage, may_be_done
from messaging.errors import Outage, OutboxFull
from web import faults

MEDIA_TYPE = "application/problem+json"
BUSY_RETRY_SECONDS = 5
"""Retry-After of an answer that refuses work because something behind us is away or full."""

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

log = structlog.get_logger(__name__)


class _Details(JSONResponse):
    """What a client sent may be quoted in it, half a character included; that becomes a question mark."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Problem(Exception):
    """A failure the client is told about. `detail` is one sentence that says what to do.

    `field` names the part of the request at fault, as the client wrote it; `faults` are such parts when there are
    several, each with its own sentence. `kind` ends the problem's type, ``urn:workbot:problem:<kind>``, for programs
    to match on. `members` are told beside the standard ones.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        field: str | None = None,
        faults: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.faults = list(faults) if field is None else [(field, detail)]
        self.headers = dict(headers or {})
        self.members = dict(members or {})

    def response(self) -> JSONResponse:
        """The answer itself."""
        return _response(self.status, self.kind, self.detail, self.faults, self.headers, self.members)


class BadInput:
    """Gathers what is wrong with several parts of a request, so that all of it is told at once.

    Check each part within ``with bad:``, then call `tell`. It takes 422 problems; every other failure goes on.
    """

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def __enter__(self) -> None: ...

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Problem) and error.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            self._found.append(error)
            return True
        return False

    def tell(self) -> None:
        """Raises what was found: one problem as it is, several as one that names each part."""
        match self._found:
            case []:
                return
            case [only]:
                raise only
        told = [fault for problem in self._found for fault in problem.faults]
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "bad-input", _sentences(told), faults=told)


def bad_input(field: str, kind: str, detail: str) -> Problem:
    """422: a part of the request, named by `field`, is not usable as sent."""
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, kind, detail, field=field)


def not_found(what: str, field: str = "id") -> Problem:
    """404, also for what exists and is not the caller's to see. `field` is where the client named it: "id" is that of
    the path."""
    return Problem(HTTPStatus.NOT_FOUND, "not-found", f"There is no such {what}.", field=field)


def id_of(what: str, text: str) -> UUID:
    """The id in a path. Raises the 404 for what cannot be one: there is no such thing."""
    try:
        return UUID(text)
    except ValueError:
        raise not_found(what) from None


def install(app: FastAPI) -> None:
    """Turn every failure of `app` into a problem."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OutboxFull, _busy)
    app.add_exception_handler(Outage, _busy)
    app.add_exception_handler(psycopg.Error, _database)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unexpected)


def _response(
    status: int,
    kind: str,
    detail: str,
    faults: Sequence[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Any] | None = None,
) -> JSONResponse:
    body: dict[str, Any] = {
        **(members or {}),
        "type": f"urn:workbot:problem:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if faults:
        body["errors"] = [{"field": field, "detail": text} for field, text in faults]
    return _Details(body, status, dict(headers or {}), MEDIA_TYPE)


async def _problem(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return error.response()


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    if any(_of_another_type(request, fault) for fault in error.errors()):
        detail = f"A body of this type cannot be taken. {faults.JSON_OBJECT}"
        return Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unknown-type", detail, field="Content-Type").response()
    body = getattr(request.scope.get("route"), "body_field", None)
    names = [] if body is None else getattr(body.field_info.annotation, "model_fields", ())
    found = faults.told(error.errors(), names)
    return _response(HTTPStatus.UNPROCESSABLE_ENTITY, "bad-input", _sentences(found), found)


def _sentences(found: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{field}: {text}" for field, text in found)


def _of_another_type(request: Request, fault: Mapping[str, Any]) -> bool:
    """Whether it says that a body which does not say of itself that it is JSON is no object."""
    return (
        not is_json(media_type(request.headers)) and tuple(fault["loc"]) == ("body",) and fault["type"] != "missing"
    )


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, Problem):
        # Raised while the framework read a body: it would call that a malformed one.
        return error.__cause__.response()
    if isinstance(error.__cause__, ValueError | RecursionError):
        # What the framework calls a 400: the body's bytes are no text, the JSON is too deep, a number has no end.
        detail = f"The body is not JSON in UTF-8 that can be read. {faults.JSON_OBJECT}"
        return bad_input("body", "not-json", detail).response()
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    detail, headers = str(error.detail), error.headers
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            detail = "There is nothing at this path; GET /docs shows the paths there are."
        case HTTPStatus.METHOD_NOT_ALLOWED:
            # The framework names those of the first route only.
            allowed = ", ".join(_methods(request))
            detail, headers = f"This path takes {allowed}; GET /docs shows how.", {"Allow": allowed}
    return _response(error.status_code, kind, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """What the path of a request takes, over all routes."""
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


def media_type(headers: Headers) -> str:
    """What a body says that it is, in lower case and without parameters; empty when it does not say."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Whether such a body is JSON, as the framework sees it."""
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def only_reads(method: str) -> bool:
    """Whether such a request changes nothing: there is nothing to keep, and nothing that might have been kept."""
    return method in ("GET", "HEAD")


async def _busy(request: Request, error: Exception) -> JSONResponse:
    log.warning("request.refused", error=str(error))
    if only_reads(request.method):
        detail = "The service cannot answer this at the moment. Ask again shortly."
    elif may_be_done(error):
        detail = (
            "The service lost its database in the middle of this, and cannot tell whether it was kept. Send it again "
            "shortly, under the same Idempotency-Key if it had one."
        )
    else:
        detail = "The service cannot take new work at the moment; nothing was kept. Send it again shortly."
    return _response(HTTPStatus.SERVICE_UNAVAILABLE, "busy", detail, headers={"Retry-After": str(BUSY_RETRY_SECONDS)})


async def _database(request: Request, error: Exception) -> JSONResponse:
    return await (_busy if is_outage(error) else _unexpected)(request, error)


async def _gone(_request: Request, _error: Exception) -> JSONResponse:
    # Nobody is left to read this; it ends the request without counting as a fault of ours.
    return _response(HTTPStatus.BAD_REQUEST, "cut-off", "The request broke off before its end.")


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("request.failed", method=request.method, path=request.url.path, exc_info=error)
    detail = "Something went wrong on our side; it has been written down."
    # This is answered outside of what would notice that the body was not read: see web.bodies.
    headers = {"Connection": "close"}
    return _response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail, headers=headers)
