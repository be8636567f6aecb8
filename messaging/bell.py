"""How a sleeping relay is woken: writers ring only while it sleeps.

The relay holds the advisory lock exclusively while it sleeps, and only then. A writer tries to take it shared, in its
transaction (the outbox's trigger does it): if it gets it, the relay is awake, and cannot fall asleep before that
transaction has ended and its rows are visible; if not, the writer sends a NOTIFY, delivered at its commit. Having
fallen asleep the relay reads once more. So no committed row waits for anything but the relay itself. (Two-phase
commit is not for writers: Postgres refuses to prepare a transaction that rang.)
"""

from messaging.cursor import Connection

CHANNEL = "outbox"
LOCK = (1987, 1)
"""The same numbers stand in the trigger of the first migration."""


class Bell:
    """The relay's end of it, on the connection it reads with."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.execute(f"LISTEN {CHANNEL}")

    def fall_asleep(self) -> bool:
        """Try to become one who must be woken; False while a writer that saw us awake is still open.

        True: read once more before you `wait`.
        """
        # What rang before this moment is covered by that read.
        for _stale in self._connection.notifies(timeout=0):
            pass
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s, %s)", LOCK, prepare=True).fetchone()
        return row is not None and bool(row[0])

    def wait(self, seconds: float) -> bool:
        """Sleep until the bell rings, at most `seconds`; whether it rang."""
        return any(True for _ring in self._connection.notifies(timeout=seconds, stop_after=1))

    def wake_up(self) -> None:
        """From here on writers see us awake and do not ring."""
        self._connection.execute("SELECT pg_advisory_unlock(%s, %s)", LOCK, prepare=True)
