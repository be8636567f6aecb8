"""The attempts table: one row per run of a job, with when it was ready, when it held a slot, and how it ended.

Rows are kept in memory and written in batches after the slot is free. They are for people and audits: a crash may
leave the last few out, the ledger never.
"""

from datetime import UTC, datetime

import structlog
from psycopg import DataError

from messaging import telemetry
from messaging.database import Pool, is_outage, single_statements
from messaging.runs import Run

log = structlog.get_logger(__name__)

_COPY = """
copy ledger_attempts (consumer, message_id, generation, attempt, tenant, sender, subject, worker,
                      ready_at, started_at, finished_at, outcome, lent, error) from stdin
"""

MOST_WAITING = 50_000
"""Rows kept while the database is away; beyond it the oldest are dropped and counted."""


class Attempts:
    """Collects the runs of one worker and appends them to the table."""

    def __init__(self, pool: Pool, consumer: str, worker: int) -> None:
        self._pool = pool
        self._consumer = consumer
        self._worker = worker
        self._rows: list[tuple[object, ...]] = []

    def note(self, run: Run, ended_at: float) -> None:
        """Remember a run that held a slot from `run.started_at` to `ended_at` (Unix time in seconds)."""
        key = run.entry.key
        self._rows.append(
            (
                self._consumer,
                run.id,
                run.generation,
                run.attempt,
                key.tenant,
                key.sender,
                _clean(run.subject),
                self._worker,
                _utc(min(run.entry.ready_at, run.started_at)),
                _utc(run.started_at),
                _utc(ended_at),
                run.outcome,
                run.lent,
                _clean(str(run.error)[:500]) if run.error is not None else None,
            )
        )

    async def flush(self) -> None:
        """Write what was noted; kept for the next time while the database is away."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        try:
            await self._write(rows)
        except Exception as error:
            if not is_outage(error):
                # One row that Postgres refuses must not take the others with it.
                log.exception("attempts.refused", consumer=self._consumer)
                await self._write_each(rows)
                return
            self._drop(len(rows) - MOST_WAITING)
            self._rows = rows[-MOST_WAITING:] + self._rows

    async def _write(self, rows: list[tuple[object, ...]]) -> None:
        async with single_statements(self._pool) as conn, conn.cursor().copy(_COPY) as copy:
            for row in rows:
                await copy.write_row(row)

    async def _write_each(self, rows: list[tuple[object, ...]]) -> None:
        for row in rows:
            try:
                await self._write([row])
            except DataError:
                self._drop(1)

    def _drop(self, rows: int) -> None:
        if rows > 0:
            telemetry.ATTEMPTS_DROPPED.labels(self._consumer).inc(rows)


def _clean(text: str | None) -> str | None:
    return text.replace("\0", "") if text is not None else None


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
