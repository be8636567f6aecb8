"""An HTTP face: a FastAPI application with problems, probes and request metrics in place."""

import unicodedata
from collections.abc import Mapping

from fastapi import Depends, FastAPI, Request

from web import openapi, probes, problems, reference
from web.bodies import Pace, Paced


def make_face(
    title: str,
    *,
    live: Mapping[str, probes.Check],
    ready: Mapping[str, probes.Check],
    pace: Pace | None = None,
    description: str = "",
) -> FastAPI:
    """An application that serves the probes, and /docs, which begins with the `description`; add the service's
    routers to it."""
    app = FastAPI(
        title=title,
        description=description,
        version="1",
        # Their pages come from other servers; ours does not.
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(_readable)],
    )
    problems.install(app)
    app.add_middleware(Paced, pace=pace or Pace())
    openapi.describe(app)
    reference.install(app)
    probes.measure(app)
    app.include_router(probes.router(live, ready))
    return app


async def _readable(request: Request) -> None:
    """Raises a 422 problem for a parameter that holds a control character; PostgreSQL, for one, takes no NUL."""
    given = [*request.query_params.multi_items(), *request.path_params.items()]
    for name, value in given:
        if any(unicodedata.category(character) == "Cc" for character in f"{name}{value}"):
            raise problems.bad_input(name, "bad-character", "The value holds a control character; send it without.")
