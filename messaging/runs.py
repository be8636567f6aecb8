"""One run of one job while it holds a slot: the start in the ledger, the handler, the end in the ledger.

The scheduler (`consumer`) decides when; what becomes of a failure is settled in `outcomes`, after the slot is free.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import structlog

from messaging import telemetry
from messaging.batcher import Batcher
from messaging.database import Connection, Pool, is_outage, single_statements
from messaging.deadletter import FIRST_HOP, Hop
from messaging.entries import NOBODY, Entry
from messaging.errors import Fenced, LostAttempts, MessagingError, NotRetryable, Outage, Retryable, Undecodable
from messaging.job import Handler, Job, Reader
from messaging.ledger import Found, Grant, Ledger, Start
from messaging.message import SUBJECT, TRACEPARENT, given_id, header_text

log = structlog.get_logger(__name__)

MAX_STRIKES = 3
"""Starts that ended with the process: at the third the job is a dead letter."""

BUSY_SECONDS = 1.0
"""How soon to ask again after a job that another live worker is still running."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The record needs nothing more."""


@dataclass(frozen=True, slots=True)
class Again:
    """The record waits here for `seconds` and asks to run again; `due` tells the ledger that it waited."""

    seconds: float
    due: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """Back to the front of its lane, uncharged; the gate was shut for what everybody waits for."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A suspect: it runs again when nothing else does."""


Verdict = Finished | Again | Held | Alone

FINISHED = Finished()


class Run:
    """The notes on one run. After `execute` either `verdict` or `error` is set. Times are Unix seconds."""

    # Made for every record: what is set later is found on the class until then.
    grant: Grant | None = None
    job: Job | None = None
    handler: Handler | None = None
    error: MessagingError | None = None
    verdict: Verdict | None = None
    outcome = "done"
    claimed: tuple[str, int] | None = None

    def __init__(self, entry: Entry, hop: Hop, headers: dict[str, bytes], *, lent: bool, alone: bool) -> None:
        self.entry = entry
        self.lent = lent
        self.alone = alone
        self.headers = headers
        self.generation = hop.generation
        self.failures = hop.failures
        self._first_origin = hop.origin
        self.id = given_id(headers) or self.origin
        self.started_at = time.time()

    @property
    def origin(self) -> str:
        """Where the record was first written."""
        entry = self.entry
        return self._first_origin or f"{entry.partition.topic}/{entry.partition.number}/{entry.offset}"

    @property
    def token(self) -> int:
        """The fence in the ledger; 0 without one."""
        return self.grant.token if self.grant is not None else 0

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.failures + 1

    @property
    def subject(self) -> str | None:
        """What the job is about, as its sender named it."""
        return header_text(self.headers, SUBJECT)


class Runs:
    """Executes the runs of one consumer on one worker. Without a ledger nothing is remembered between runs."""

    def __init__(self, reader: Reader, pool: Pool | None, ledger: Ledger | None) -> None:
        self._reader = reader
        self._pool = pool
        self._ledger = ledger
        self._begins: Batcher[Start, Grant] = Batcher(self._begin_batch)
        self._finishes: Batcher[Run, bool] = Batcher(self._finish_batch)
        self._active: set[tuple[str, int]] = set()
        self._loop = asyncio.get_running_loop()
        self.stopping = False
        """From here on a cancellation is ours: the end of a drain."""

    def prepare(self, entry: Entry, *, lent: bool, alone: bool) -> Run:
        """The run of a record that was given a slot. Our own headers count only on a retry topic."""
        record = entry.record
        hop = Hop(record.headers()) if entry.partition.is_retry else FIRST_HOP
        return Run(entry, hop, record.named(), lent=lent, alone=alone)

    async def execute(self, run: Run) -> None:
        """Start, handle, finish. Only cancellation is raised; the scheduler then gives the start back."""
        name = run.id, run.generation
        if name in self._active:
            run.verdict = Again(BUSY_SECONDS)
            return
        self._active.add(name)
        run.claimed = name
        try:
            await self._execute(run)
        except asyncio.CancelledError:
            if self.stopping:
                raise
            # Nobody of us stopped this run: its handler was cancelled, or awaited something that was.
            run.error = Retryable("The handler was cancelled, or waited for something that was.")
        except Exception as error:
            run.error = classify(error)
        task = asyncio.current_task(self._loop)
        if task is not None and task.cancelling() and not self.stopping:
            await _shake_off(task)

    def settled(self, run: Run) -> None:
        """The run's outcome is written: a copy of the same message may ask to run from here on."""
        if run.claimed is not None:
            self._active.discard(run.claimed)

    async def _execute(self, run: Run) -> None:
        read: tuple[Any, Handler] | None = None
        unreadable: NotRetryable | None = None
        try:
            if run.entry.key is NOBODY:
                raise Undecodable("The record's key is not <tenant>:<sender>, so nobody can be asked about it.")
            read = await self._reader.read(run.headers, run.entry.record.value())
        except NotRetryable as error:
            unreadable = error
        if read is None and unreadable is None:
            run.verdict = FINISHED
            return
        finish = None
        if self._ledger is not None:
            run.grant = await self._begins.submit(Start(run.id, run.generation, run.entry.due, run.alone))
            run.failures = run.grant.failures
            if not _granted(run, run.grant):
                return

            async def finish(conn: Connection) -> bool:
                return await self._finish(conn, run)

        if read is None:
            run.error = unreadable
            return
        event, run.handler = read
        pool = self._pool if finish is not None else None
        run.job = Job(
            run.id, run.generation, run.entry.key, run.attempt, event, run.headers, pool=pool, finish=finish
        )
        # A run has a context of its own, so its trace ends with it.
        telemetry.enter_trace(run.headers.get(TRACEPARENT))
        await run.handler.run(run.job)
        if finish is not None and not run.job.finished and not await self._finishes.submit(run):
            raise Fenced(f"Another run owns job {run.id}.")
        run.verdict = FINISHED

    async def job_of_the_unread(self, run: Run) -> bool:
        """Read a job that never came to its handler, so that its service hears of the end. False: unreadable."""
        try:
            read = await self._reader.read(run.headers, run.entry.record.value())
        except NotRetryable:
            return False
        if read is None:
            return False
        run.handler = read[1]
        run.job = Job(run.id, run.generation, run.entry.key, run.attempt, read[0], run.headers)
        return True

    async def _begin_batch(self, starts: list[Start]) -> list[Grant]:
        assert self._ledger is not None
        assert self._pool is not None
        async with single_statements(self._pool) as conn:
            return await self._ledger.begin(conn, starts)

    async def _finish(self, conn: Connection, run: Run) -> bool:
        assert self._ledger is not None
        return await self._ledger.finish(conn, run.id, run.generation, run.token)

    async def _finish_batch(self, runs: list[Run]) -> list[bool]:
        assert self._ledger is not None
        assert self._pool is not None
        async with single_statements(self._pool) as conn:
            held = await self._ledger.finish_many(conn, [(run.id, run.generation, run.token) for run in runs])
        return [run.token in held for run in runs]


async def _shake_off(task: "asyncio.Task[Any]") -> None:
    """Take back a cancellation that is not ours, so that it does not strike where the outcome is written."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # one that is still to come comes here
    while task.uncancel():
        pass


def _granted(run: Run, grant: Grant) -> bool:
    match grant.found:
        case Found.GRANTED:
            return True
        case Found.DONE | Found.DEAD:
            run.verdict = FINISHED
        case Found.NOT_DUE:
            run.verdict = Again(grant.wait_seconds, due=True)
        case Found.BUSY:
            run.verdict = Again(BUSY_SECONDS)
        case Found.SUSPECT if grant.strikes >= MAX_STRIKES:
            run.error = LostAttempts(f"The process died {grant.strikes} times while it ran this job.")
        case Found.SUSPECT:
            run.verdict = Alone()
    return False


def classify(error: BaseException) -> MessagingError:
    """The place of any error in the tree: what nobody classified may pass, so it is retried."""
    if isinstance(error, MessagingError):
        return error
    if is_outage(error):
        return Outage(f"The database is away: {error}", "database")
    log.error("job.failed", error=f"{type(error).__name__}: {error}", exc_info=error)
    return Retryable(f"{type(error).__name__}: {error}")
