"""Whose transaction is open for too long: `strict` waits for it, and in any order it keeps old row versions alive."""

import time

import structlog

from messaging import telemetry
from messaging.cursor import Connection

LOOK_SECONDS = 5.0
ALARM_SECONDS = 30.0

log = structlog.get_logger(__name__)


class Watchdog:
    """Names the oldest open writer of the cluster, prepared transactions included, once it is older than 30 s."""

    def __init__(self, connection: Connection, relay: str) -> None:
        self._connection = connection
        self._relay = relay
        self._next_look = 0.0
        self._named = ""
        self._name_again = 0.0

    def look(self) -> None:
        """Every five seconds: set the gauge, and log the holder when it is a new one and then once a minute."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        row = self._connection.execute("SELECT * FROM outbox_oldest_writer()", prepare=True).fetchone()
        age = row[4] if row is not None else 0.0
        telemetry.OLDEST_WRITER_SECONDS.labels(self._relay).set(age)
        if row is None or age < ALARM_SECONDS:
            return
        holder, database, application, state, _age = row
        if holder != self._named or now >= self._name_again:
            self._named, self._name_again = holder, now + 60.0
            log.warning(
                "relay.old_writer",
                relay=self._relay,
                holder=holder,
                database=database,
                application=application,
                state=state,
                age_seconds=round(age, 1),
            )
