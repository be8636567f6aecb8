"""/healthz, /readyz, /metrics, and what is measured of every request."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Literal

import structlog
from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from messaging.telemetry import HTTP_SECONDS, trace
from web.openapi import answers
from web.problems import Problem

Check = Callable[[], bool | Awaitable[bool]]
"""One question about the process: is this part well? It may raise; that counts as no."""
CHECK_SECONDS = 2.0

log = structlog.get_logger(__name__)


class WellView(BaseModel):
    """Every part that was asked, each well; else the answer is a problem whose `parts` say which are not."""

    status: Literal["ok"] = "ok"
    parts: dict[str, Literal["ok"]]


def router(live: Mapping[str, Check], ready: Mapping[str, Check]) -> APIRouter:
    """The three routes. `live` false means restart me; `ready` false means send me no work just now."""
    routes = APIRouter(tags=["probes"])

    @routes.get("/healthz", responses=answers(503), summary="Is the process alive?")
    async def healthz() -> WellView:
        return await _answer(live)

    @routes.get("/readyz", responses=answers(503), summary="Can it take work?")
    async def readyz() -> WellView:
        return await _answer({**live, **ready})

    @routes.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return routes


async def _answer(checks: Mapping[str, Check]) -> WellView:
    results = await asyncio.gather(*(_ask(name, check) for name, check in checks.items()))
    failing = [name for name, well in zip(checks, results, strict=True) if not well]
    if failing:
        parts = {name: "failing" if name in failing else "ok" for name in checks}
        detail = f"Not well: {', '.join(failing)}. The process's log says why."
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not-well", detail, members={"parts": parts})
    return WellView(parts=dict.fromkeys(checks, "ok"))


async def _ask(name: str, check: Check) -> bool:
    try:
        answer = check()
        return answer if isinstance(answer, bool) else await asyncio.wait_for(answer, CHECK_SECONDS)
    except Exception as error:
        log.warning("check.failed", part=name, error=repr(error))
        return False


class Measured:
    """ASGI middleware: counts and times each request by route, and runs it in the caller's trace."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        began = time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        parent = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        try:
            with trace(parent.decode("latin-1")):
                await self._app(scope, receive, watch)
        finally:
            # Only known methods and route templates become labels: a client cannot make up new ones.
            route = getattr(scope.get("route"), "path", "unmatched")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            HTTP_SECONDS.labels(method, route, str(status)).observe(time.perf_counter() - began)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def measure(app: FastAPI) -> None:
    """Put `Measured` around the whole application, its error handlers included."""
    app.add_middleware(Measured)
