"""A client that does not give up: the same call again until the answer is the one wanted."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import httpx

TOKEN_SECONDS = 6 * 3600.0
"""A token outlives every run."""

_PASSING = frozenset({429, 500, 502, 503, 504})
_PAUSE_SECONDS = 0.25


class Refused(AssertionError):
    """The API answered something that no repeat can mend."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that was not the one wanted, or none. `what`: its status, or what the connection failed of.

    From when to when it took, in Unix seconds.
    """

    what: str
    posted_at: float
    at: float

    def __str__(self) -> str:
        return f"{self.what} after {self.at - self.posted_at:.1f} s"


async def until_accepted(
    post: Callable[[], Awaitable[httpx.Response]], wanted: HTTPStatus, name: str
) -> tuple[httpx.Response, list[Refusal]]:
    """Post until the answer is `wanted`; returns it and what came before. Raises Refused, which says `name`."""
    refusals: list[Refusal] = []
    while True:
        begun = time.time()
        try:
            answer = await post()
        except httpx.TransportError as error:
            what = type(error).__name__
        else:
            if answer.status_code == wanted:
                return answer, refusals
            if answer.status_code not in _PASSING:
                raise Refused(f"{name}: {answer.status_code} {answer.text[:300]}")
            what = str(answer.status_code)
        refusals.append(Refusal(what, begun, time.time()))
        await asyncio.sleep(_PAUSE_SECONDS)
