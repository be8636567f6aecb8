"""An HTTP face: a FastAPI application with problems, probes and request metrics in place."""

from collections.abc import Mapping

from fastapi import FastAPI

from web import probes, problems


def make_face(title: str, *, live: Mapping[str, probes.Check], ready: Mapping[str, probes.Check]) -> FastAPI:
    """An application that serves the probes, and /docs; add the service's routers to it."""
    app = FastAPI(title=title, version="1", redoc_url=None, swagger_ui_oauth2_redirect_url=None)
    problems.install(app)
    probes.measure(app)
    app.include_router(probes.router(live, ready))
    return app
