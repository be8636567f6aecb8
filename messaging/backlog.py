"""How much waits in the outbox, and where writers must stop. Estimated from numbers drawn: counting is too slow.

Numbers of rolled-back transactions count as waiting until the relay has caught up once, so the estimate errs upwards.
"""

import time
from datetime import UTC, datetime

import structlog

from messaging import telemetry
from messaging.cursor import Connection
from messaging.publisher import Batch

LIMIT = 1_000_000
"""Rows that may wait before the outbox refuses more."""

STALL_SECONDS = 5.0

log = structlog.get_logger(__name__)


class Backlog:
    """Keeps the gauges, the outbox's ceiling, and the alarms: Kafka does not confirm, too much waits."""

    def __init__(self, connection: Connection, relay: str, limit: int) -> None:
        self._connection = connection
        self._relay = relay
        self._limit = limit
        self._ceiling: int | None = None
        self._stalled = False
        self._high = False

    def update(self, rows: int, drawn: int, first: Batch | None) -> None:
        """`rows` wait, writers have drawn numbers up to `drawn`; `first` is the oldest batch on its way, if any."""
        telemetry.RELAY_BACKLOG.labels(self._relay).set(rows)
        age, stalled = 0.0, False
        if first is not None:
            age = (datetime.now(UTC) - datetime.fromisoformat(first.rows[0][7])).total_seconds()
            stalled = time.monotonic() > first.answered_at + STALL_SECONDS
        telemetry.RELAY_OLDEST_SECONDS.labels(self._relay).set(max(0.0, age))
        self._place_ceiling(drawn + self._limit - rows)
        self._alarm(rows, stalled)

    def _alarm(self, rows: int, stalled: bool) -> None:
        if stalled and not self._stalled:
            telemetry.RELAY_OUTAGES.labels(self._relay, "kafka").inc()
            log.warning("relay.kafka_silent", relay=self._relay, waiting=rows)
        elif self._stalled and not stalled:
            log.info("relay.kafka_confirms_again", relay=self._relay, waiting=rows)
        self._stalled = stalled
        high = rows > self._limit // (4 if self._high else 2)
        if high and not self._high:
            log.error("relay.backlog_high", relay=self._relay, waiting=rows, limit=self._limit)
        self._high = high

    def _place_ceiling(self, ceiling: int) -> None:
        """Seldom: every insert reads this row, and each change leaves an old version of it behind."""
        if self._ceiling is not None and abs(ceiling - self._ceiling) <= self._limit // 8:
            return
        self._connection.execute(
            """
            INSERT INTO outbox_limit (ceiling) VALUES (%s)
            ON CONFLICT (single) DO UPDATE SET ceiling = excluded.ceiling
            """,
            [ceiling],
        )
        self._ceiling = ceiling
