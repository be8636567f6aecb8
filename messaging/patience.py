"""What a process does while a server that it needs for its start is away: wait for it, and say so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import structlog

from messaging.database import is_outage
from messaging.errors import Outage, reason
from messaging.gate import Gate

T = TypeVar("T")

log = structlog.get_logger(__name__)


async def waited_out(doing: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until no outage is in the way, with pauses as after an outage at work; every other error goes on.

    What can be served without the answer is served before: a process that does not answer on /healthz is started
    anew. Without its database nothing can, so that comes first of all: to be started anew is no loss then.
    """
    gate, loop = Gate(), asyncio.get_running_loop()
    waited = False
    while True:
        try:
            result = await attempt()
        except Outage as error:
            resource, said = error.resource, reason(error)
        except psycopg.Error as error:
            if not is_outage(error):
                raise
            resource, said = "database", reason(error)
        else:
            if waited:
                log.info("start.goes_on", doing=doing)
            return result
        waited = True
        seconds = gate.pause(resource, loop.time())
        log.warning("start.waits", doing=doing, resource=resource, error=said, seconds=round(seconds, 2))
        await asyncio.sleep(seconds)
