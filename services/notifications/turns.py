"""At most so many at once for one name; the others wait, holding nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class _Name:
    free: asyncio.Semaphore
    here: int = 0
    """Those that run, and those that wait."""


class Turns:
    """Turns by name. A name that nobody asks for is forgotten."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._names: dict[str, _Name] = {}

    @property
    def names(self) -> int:
        """How many names there are whose turns somebody has or waits for."""
        return len(self._names)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Wait for one, first come, first served, and have it for the block."""
        those = self._names.setdefault(name, _Name(asyncio.Semaphore(self._at_once)))
        those.here += 1
        try:
            async with those.free:
                yield
        finally:
            those.here -= 1
            if not those.here:
                del self._names[name]
