"""One timer for many reasons to wake up: it rings at the earliest of the times it was set to."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` on the event loop. Once it rang, it is set to nothing."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, seconds: float) -> None:
        """Ring in so many seconds, if it would not ring before."""
        at = self._loop.time() + seconds
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(seconds, self._rings)

    def _rings(self) -> None:
        self._timer = None
        self._ring()
