"""Pure: how long the relay waits between two reads of the table.

A read, with what it sends and confirms, costs the machine about as much as the filing of two requests. While many
rows come, fewer and larger reads leave more of the machine to those who write; while few come, each is to leave at
once. So the wait grows with the rate: the rows of a read then grow with its square.
"""

POLL_MIN = 0.002
"""Seconds between two reads while few rows come."""

BUSY_RATE = 500
"""Rows a second from which on there is something to save."""

POLL_BUSY = 5e-5
"""From there on the wait in seconds for each row a second: 25 ms at 500, 50 ms at 1,000."""

POLL_BUSY_MAX = 0.1
"""The longest wait in seconds, from 2,000 rows a second on."""

PACE_SECONDS = 0.1
"""Over so many seconds, at least, the rate is taken."""

SOON_SECONDS = 0.02
"""Or over so many, to notice a flood before it has cost many reads."""

EVIDENCE = 3
"""Reads that found rows make a flood. Many rows of one transaction are none: what comes after them leaves at once."""


class Pace:
    """One relay's. Times are seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._wait = POLL_MIN
        self._begin(now)

    def after(self, rows: int, now: float) -> float:
        """A read brought so many rows, and no more wait: seconds to the next one."""
        self._rows += rows
        self._found += rows > 0
        seconds = now - self._since
        slow, proven = self._wait > POLL_MIN, self._found >= EVIDENCE
        if seconds >= PACE_SECONDS or (not slow and proven and seconds >= SOON_SECONDS):
            rate = self._rows / seconds
            flood = rate >= BUSY_RATE and (slow or proven)
            self._wait = min(rate * POLL_BUSY, POLL_BUSY_MAX) if flood else POLL_MIN
            self._begin(now)
        return self._wait

    def _begin(self, now: float) -> None:
        self._since, self._rows, self._found = now, 0, 0
