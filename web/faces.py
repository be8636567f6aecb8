"""An HTTP face: a FastAPI application with problems, probes and request metrics in place."""

import unicodedata
from collections.abc import Mapping

from fastapi import Depends, FastAPI, Request

from web import probes, problems


def make_face(title: str, *, live: Mapping[str, probes.Check], ready: Mapping[str, probes.Check]) -> FastAPI:
    """An application that serves the probes, and /docs; add the service's routers to it."""
    app = FastAPI(
        title=title,
        version="1",
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        dependencies=[Depends(_readable)],
    )
    problems.install(app)
    probes.measure(app)
    app.include_router(probes.router(live, ready))
    return app


async def _readable(request: Request) -> None:
    """Raises a 422 problem for a parameter that holds a control character; PostgreSQL, for one, takes no NUL."""
    given = [*request.query_params.multi_items(), *request.path_params.items()]
    for name, value in given:
        if any(unicodedata.category(character) == "Cc" for character in f"{name}{value}"):
            raise problems.bad_input(name, "bad-character", "The value holds a control character; send it without.")
