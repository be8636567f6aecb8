"""Which relay leads: a session advisory lock, a heartbeat by the database's clock, and the end of a frozen leader.

The lock dies with its connection, so a killed leader is followed at once. A frozen one keeps its connection:
a standby that finds the heartbeat overdue ends that backend, and so all that the old leader could still write here.
"""

import time
import zlib

from messaging.cursor import Connection
from messaging.errors import MessagingError

BEAT_SECONDS = 0.5
STALE_SECONDS = 2.0
"""A leader not heard of for this long is replaced; it stops by itself no later, by its own monotonic clock."""

_LOCK_CLASS = 1988


class LostLead(MessagingError):
    """This process may not lead any more. Drop what is not sent, read the position anew."""


class Leader:
    """One process's claim to lead the relay `name`, on the connection that holds the lock."""

    def __init__(self, connection: Connection, name: str, process: str) -> None:
        self._connection = connection
        self._name = name
        self._process = process
        self._key = zlib.crc32(name.encode()) & 0x7FFFFFFF
        self._good_until = 0.0

    def claim(self) -> bool:
        """Try to take the lead; True when it is ours."""
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s, %s)", [_LOCK_CLASS, self._key]).fetchone()
        if row is None or not row[0]:
            return False
        now = time.monotonic()
        self._connection.execute(
            """
            INSERT INTO relay_leader (name, backend, process) VALUES (%s, pg_backend_pid(), %s)
            ON CONFLICT (name) DO UPDATE SET backend = excluded.backend, process = excluded.process,
                since = clock_timestamp(), beat_at = clock_timestamp()
            """,
            [self._name, self._process],
        )
        self._good_until = now + STALE_SECONDS
        return True

    def ensure(self) -> None:
        """Raise LostLead when the last heartbeat is so old that another may lead by now."""
        if time.monotonic() >= self._good_until:
            raise LostLead("This process was stopped for too long to go on leading.")

    def beat(self, backlog: int) -> int:
        """Say that we live and how many rows wait; returns the highest number drawn by any writer.

        Raises LostLead when another leads.
        """
        self.ensure()
        now = time.monotonic()
        row = self._connection.execute(
            """
            UPDATE relay_leader SET beat_at = clock_timestamp(), backlog = %s
            WHERE name = %s AND backend = pg_backend_pid() RETURNING (SELECT last_value FROM outbox_seq_seq)
            """,
            [backlog, self._name],
            prepare=True,
        ).fetchone()
        if row is None:
            raise LostLead("Another process has taken the lead.")
        self._good_until = now + STALE_SECONDS
        return int(row[0])

    def depose(self) -> bool:
        """As a standby: end the leader's connection if the leader has gone silent; whether it was ended.

        A holder that never came to its first heartbeat counts from its last statement.
        """
        row = self._connection.execute(
            """
            SELECT pg_terminate_backend(l.pid)
            FROM pg_locks l JOIN pg_stat_activity a USING (pid) LEFT JOIN relay_leader h ON h.name = %(name)s
            WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 2
                AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND l.classid = %(class)s AND l.objid = %(key)s
                AND CASE WHEN h.backend = l.pid THEN h.beat_at ELSE a.state_change END
                    < clock_timestamp() - make_interval(secs => %(stale)s)
            """,
            {"name": self._name, "class": _LOCK_CLASS, "key": self._key, "stale": STALE_SECONDS},
            prepare=True,
        ).fetchone()
        return row is not None and bool(row[0])
