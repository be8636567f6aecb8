"""A worker process under test: `python -m tests.messaging.worker '{"bootstrap": …}'`. Its jobs say what they do.

{"do": "effect", "seconds": 0.1}   wait, then write one row of effects in the job's transaction
{"do": "exit"}                     end this process at once, as a segmentation fault would
{"do": "fail", "times": 2}         fail that many attempts, then write the effect
{"do": "freeze"}                   the first run stops its process before COMMIT, the next writes the effect
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

from psycopg_pool import AsyncConnectionPool

from messaging.consumer import Limits
from messaging.database import Connection, Pool
from messaging.errors import MessagingError, Retryable
from messaging.job import Job
from messaging.policy import Backoff, Policy
from tests.messaging.harness import consuming, subscription


class Scripted:
    """Does what each job says. Every start is a row of its own, committed before anything else."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def run(self, job: Job) -> None:
        event: dict[str, Any] = job.event
        async with self._pool.connection() as conn:
            await conn.execute("insert into starts values (%s, %s, %s)", (job.id, job.attempt, os.getpid()))
        if event["do"] == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        if event["do"] == "fail" and job.attempt <= event["times"]:
            raise Retryable("told to fail")
        if event["do"] == "freeze":
            await self._freeze_once(job)
        await asyncio.sleep(event.get("seconds", 0.0))
        async with job.transaction() as conn:
            await conn.execute("insert into effects values (%s, %s)", (job.id, os.getpid()))

    async def _freeze_once(self, job: Job) -> None:
        async with self._pool.connection() as conn:
            row = await (await conn.execute("select count(*) from starts where job = %s", (job.id,))).fetchone()
        finish = job.finish
        if row != (1,) or finish is None:
            return

        async def finish_and_stop(conn: Connection) -> bool:
            held = await finish(conn)
            os.kill(os.getpid(), signal.SIGSTOP)
            return held

        job.finish = finish_and_stop

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        """Nothing to note."""

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        await conn.execute("insert into ends values (%s, %s, %s)", (job.id, attempts, str(error)))


async def main(told: dict[str, Any]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sub = subscription(told["topic"], Policy(**told["policy"]), Backoff(attempts=4, base=0.2, cap=1.0))
    async with AsyncExitStack() as stack:
        pool: Pool = AsyncConnectionPool(told["conninfo"], min_size=2, max_size=10, open=False)
        await pool.open()
        stack.push_async_callback(pool.close)
        await stack.enter_async_context(
            consuming(
                told["bootstrap"],
                sub,
                Scripted(pool),
                pool=pool,
                conninfo=told["conninfo"],
                limits=Limits(drain_seconds=3.0),
            )
        )
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
