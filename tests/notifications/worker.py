"""A process that tells of requests, under test: `python -m tests.notifications.worker '{"bootstrap": …}'`.

It is the service's own handler, but that an event titled "poison" fails each time; with "dies_at" the process kills
itself, as kill -9 does, in that attempt at it.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import Any

from psycopg_pool import AsyncConnectionPool

from messaging.database import Pool
from messaging.errors import Retryable
from messaging.job import Job
from messaging.policy import Backoff, Policy
from messaging.readers import EventReader
from messaging.registry import Registry
from schemas import catalog
from schemas.events import NotificationDeliveryRequested, RequestCreated
from services.notifications.handlers import Tell
from tests.messaging.harness import consuming, subscription

POLICY = Policy(per_key=1, total=20, ordered=True)
BACKOFF = Backoff(attempts=3, base=0.2, cap=0.5)


class Poisoned(Tell):
    """Fails for one title."""

    dies_at = 0

    async def run(self, job: Job) -> None:
        if job.event.title == "poison":
            if job.attempt == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Retryable("told to fail")
        await super().run(job)


async def main(told: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        pool: Pool = AsyncConnectionPool(told["conninfo"], min_size=2, max_size=10, open=False)
        await pool.open()
        stack.push_async_callback(pool.close)
        registry = Registry(told["registry"])
        stack.push_async_callback(registry.close)
        codec = catalog.codec(registry)
        await codec.prepare([NotificationDeliveryRequested])
        handler = Poisoned(codec, lambda tenant: None)
        handler.dies_at = told["dies_at"]
        await stack.enter_async_context(
            consuming(
                told["bootstrap"],
                subscription(told["topic"], POLICY, BACKOFF),
                handler,
                pool=pool,
                conninfo=told["conninfo"],
                reader=EventReader(codec, {RequestCreated: handler}),
            )
        )
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
