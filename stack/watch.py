"""Watching one run of a child: asks it again and again, tells its phase, and says when to give it up."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from stack import patience
from stack.child import Child
from stack.status import Phase

STARTING_PROBE_SECONDS = 0.1
READY_PROBE_SECONDS = 5.0
PROBE_TIMEOUT_SECONDS = 5.0


class Watch:
    """`enter` hears of each phase; `stopping` says whether the child is being stopped, which is no silence.

    `excused` says whether something the child needs is away: a child without an `alive` of its own may then be silent
    for as long as that lasts.
    """

    def __init__(
        self,
        child: Child,
        enter: Callable[[Phase, str], Awaitable[None]],
        stopping: Callable[[], bool],
        excused: Callable[[], bool],
    ) -> None:
        self._child = child
        self._enter = enter
        self._stopping = stopping
        self._excused = excused
        self._phase = Phase.STARTING
        self._seen_alive = False

    async def until_given_up(self) -> str:
        """Ask until the child was not up in time, or was silent for too long; returns which, in words."""
        child = self._child
        if child.once or child.probe is None:
            await asyncio.Event().wait()
        deadline = time.monotonic() + child.ready_within
        silent_since: float | None = None
        while True:
            if self._stopping():
                await asyncio.Event().wait()
            asked = time.monotonic()
            fault = await self._round()
            now = time.monotonic()
            if not self._seen_alive:
                if now >= deadline:
                    return f"not ready within {child.ready_within:g} s ({fault})"
            else:
                answered = fault is None or (child.alive is None and self._excused())
                silent_since = patience.silent_since(silent_since, asked, answered)
                if patience.is_out(silent_since, now, child.patience):
                    return f"silent for {child.patience:g} s ({fault})"
            await asyncio.sleep(READY_PROBE_SECONDS if self._phase is Phase.READY else STARTING_PROBE_SECONDS)

    async def _round(self) -> str | None:
        """One look at the child. Returns None when it lives, ready or not, else what it answered."""
        fault = await _ask(self._child.probe)
        if fault is None:
            await self._tell(Phase.READY)
        else:
            was_ready = self._phase is not Phase.STARTING
            await self._tell(Phase.SILENT if was_ready else Phase.STARTING, fault)
            if self._child.alive is not None:
                fault = await _ask(self._child.alive)
        self._seen_alive = self._seen_alive or fault is None
        return fault

    async def _tell(self, phase: Phase, message: str = "") -> None:
        self._phase = phase
        if not self._stopping():
            await self._enter(phase, message)


async def _ask(question: Callable[[], Awaitable[None]] | None) -> str | None:
    """None for a good answer, else what was wrong with it."""
    if question is None:
        return None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            await question()
    except Exception as error:  # the answer of a probe is its error, whatever its client raises
        return (str(error).strip().split("\n", 1)[0] or type(error).__name__)[:200]
    return None
