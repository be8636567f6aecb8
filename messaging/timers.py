"""Claimed timers: work that repeats, which one instance runs each time however many are up.

A run is claimed by compare-and-set on the timer's row, by the database's clock, with a lease that the running process
renews. Effects and the end of the run commit in one transaction, fenced by the claim: a process that lost its lease
undoes what it did. Another takes a crashed run over once its lease has ended.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping

import psycopg
import structlog

from messaging import telemetry
from messaging.database import Connection, Pool, is_outage
from messaging.errors import Fenced

Work = Callable[[Connection], Awaitable[bool | None]]
"""What a run does, in one transaction, so it takes on no more than that should hold. True: there was more to do, and
the timer is due again at once."""

LEASE_SECONDS = 30.0
"""How long a silent run keeps its claim: a crashed one is taken over after this."""

RETRY_SECONDS = 30.0
"""A failed run is tried again after this, or after its own period if that is shorter."""

_LOOK_SECONDS = 5.0
_AWAY_SECONDS = 1.0

log = structlog.get_logger(__name__)


class Timers:
    """Runs each named function every so many seconds, in a transaction of its own, one at a time per process."""

    def __init__(
        self, pool: Pool, timers: Mapping[str, tuple[float, Work]], *, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        """`timers`: name -> (period in seconds, function of a connection). A function never commits."""
        self._pool = pool
        self._timers = dict(timers)
        self._lease = lease_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run from now on, on the current loop."""
        self._task = asyncio.create_task(self._run(), name="timers")

    async def stop(self) -> None:
        """Stop; a run that is under way is undone and left to whoever claims it next."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def healthy(self) -> bool:
        """Whether the timers run."""
        return self._task is not None and not self._task.done()

    async def _run(self) -> None:
        registered = False
        while True:
            try:
                if not registered:
                    await self._register()
                    registered = True
                wait = await self._run_due()
            except psycopg.Error as error:
                if not is_outage(error):
                    raise
                telemetry.TIMER_RUNS.labels("any", "database_away").inc()
                log.warning("timers.database_away", error=str(error))
                wait = _AWAY_SECONDS
            await asyncio.sleep(wait)

    async def _register(self) -> None:
        async with self._pool.connection() as connection:
            for name, (period, _) in sorted(self._timers.items()):
                await connection.execute(
                    """
                    INSERT INTO timers (name, every_seconds) VALUES (%(name)s, %(period)s)
                    ON CONFLICT (name) DO UPDATE SET every_seconds = excluded.every_seconds,
                        due_at = least(timers.due_at, clock_timestamp() + make_interval(secs => %(period)s))
                    WHERE timers.every_seconds <> excluded.every_seconds
                    """,
                    {"name": name, "period": period},
                )

    async def _run_due(self) -> float:
        """Run all that is due and free; seconds until it pays to look again."""
        while (claim := await self._claim()) is not None:
            await self._execute(*claim)
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                """
                SELECT extract(epoch FROM min(greatest(due_at, leased_until)) - clock_timestamp())::double precision
                FROM timers WHERE name = ANY(%s)
                """,
                [list(self._timers)],
            )
            row = await cursor.fetchone()
        until_due = row[0] if row is not None and row[0] is not None else _LOOK_SECONDS
        return min(_LOOK_SECONDS, max(0.01, float(until_due)))

    async def _claim(self) -> tuple[str, uuid.UUID] | None:
        token = uuid.uuid4()
        async with self._pool.connection() as connection:
            cursor = await connection.execute(
                """
                UPDATE timers SET token = %(token)s,
                    leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
                WHERE name = (
                    SELECT name FROM timers
                    WHERE name = ANY(%(names)s) AND due_at <= clock_timestamp()
                        AND (leased_until IS NULL OR leased_until <= clock_timestamp())
                    ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED
                )
                RETURNING name
                """,
                {"token": token, "lease": self._lease, "names": list(self._timers)},
            )
            row = await cursor.fetchone()
        return (row[0], token) if row is not None else None

    async def _execute(self, name: str, token: uuid.UUID) -> None:
        period, work = self._timers[name]
        renewal = asyncio.create_task(self._renew(name, token), name=f"timer-lease-{name}")
        try:
            async with self._pool.connection() as connection:
                more = await work(connection)
                await self._finish(connection, name, token, 0.0 if more else period, None)
            telemetry.TIMER_RUNS.labels(name, "done").inc()
        except Fenced as error:
            telemetry.TIMER_RUNS.labels(name, "fenced").inc()
            log.warning("timer.fenced", timer=name, error=str(error))
        except asyncio.CancelledError:
            await self._release(name, token)
            raise
        except Exception as error:
            # The failure is the timer's own: the others must go on, and this one is tried again.
            telemetry.TIMER_RUNS.labels(name, "failed").inc()
            log.exception("timer.failed", timer=name)
            await self._record_failure(name, token, min(period, RETRY_SECONDS), error)
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _record_failure(self, name: str, token: uuid.UUID, due_in: float, error: Exception) -> None:
        try:
            async with self._pool.connection() as connection:
                await self._finish(connection, name, token, due_in, repr(error))
        except Fenced:
            log.warning("timer.fenced", timer=name, error="The failed run had been taken over.")

    async def _release(self, name: str, token: uuid.UUID) -> None:
        async with self._pool.connection() as connection:
            await connection.execute(
                "UPDATE timers SET token = NULL, leased_until = NULL WHERE name = %s AND token = %s", [name, token]
            )

    async def _finish(
        self, connection: Connection, name: str, token: uuid.UUID, due_in: float, error: str | None
    ) -> None:
        cursor = await connection.execute(
            """
            UPDATE timers SET token = NULL, leased_until = NULL, last_run_at = clock_timestamp(),
                last_error = %(error)s,
                failures = CASE WHEN %(error)s::text IS NULL THEN 0 ELSE failures + 1 END,
                due_at = clock_timestamp() + make_interval(secs => %(due_in)s)
            WHERE name = %(name)s AND token = %(token)s
            """,
            {"name": name, "token": token, "due_in": due_in, "error": error},
        )
        if cursor.rowcount == 0:
            raise Fenced(f"Another process has taken the timer {name} over.")

    async def _renew(self, name: str, token: uuid.UUID) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                async with self._pool.connection() as connection:
                    await connection.execute(
                        """
                        UPDATE timers SET leased_until = clock_timestamp() + make_interval(secs => %s)
                        WHERE name = %s AND token = %s
                        """,
                        [self._lease, name, token],
                    )
            except psycopg.Error as error:
                # Not renewed in time, the claim may pass to another; the token then refuses this run's effects.
                log.warning("timer.not_renewed", timer=name, error=str(error))
