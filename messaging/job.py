"""What a handler is given, and what it must offer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from messaging.database import Connection, Pool
from messaging.errors import Fenced, MessagingError
from messaging.message import Key

Finish = Callable[[Connection], Awaitable[bool]]


@dataclass(slots=True)
class Job:
    """One run of one job.

    id          the message's id, the same in every run
    generation  0, and one more each time it is sent back from the dead letters
    attempt     1 for the first run; charged failures count, restarts of the process do not
    event       the decoded event
    """

    id: str
    generation: int
    key: Key
    attempt: int
    event: Any
    headers: dict[str, bytes]
    pool: Pool | None = None
    finish: Finish | None = None
    finished: bool = field(default=False, init=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """The transaction of this run's effects: they and the ledger's `done` commit together, once.

        Use it exactly once, at the end, and wait for nothing but the database in it: Postgres ends a transaction in
        which nothing comes for 6 s, which counts as an outage. Raises Fenced (and rolls back) when another run has
        taken the job over.
        """
        if self.pool is None or self.finish is None:
            raise MessagingError("This consumer keeps no ledger, so its jobs have no transaction.")
        if self.finished:
            raise MessagingError("A job has one transaction; its effects are committed already.")
        async with self.pool.connection() as conn, conn.transaction():
            yield conn
            if not await self.finish(conn):
                raise Fenced(f"Another run owns job {self.id}.")
        self.finished = True


class Handler(Protocol):
    """How one kind of job is done. The two hooks run in the transaction that notes the outcome in the
    ledger, and wait for nothing but the database."""

    async def run(self, job: Job) -> None:
        """Do the job. Raises Retryable, NotRetryable, Throttled or Outage; anything else counts as Retryable."""
        ...

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        """The run failed and another follows at `due_at`."""
        ...

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        """The job became a dead letter after that many attempts."""
        ...


class Reader(Protocol):
    """Turns a record into an event and says who handles it."""

    async def read(self, headers: dict[str, bytes], value: bytes | None) -> tuple[Any, Handler] | None:
        """None: a kind of event this consumer leaves alone. Raises NotRetryable (dead letter) or Outage (pause)."""
        ...
