"""How far a run's work may be handed in."""

import asyncio


class Gate:
    """Opens for one number after the other, up to `jobs`."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.allowed = 0
        """Jobs below this number may be handed in now."""
        self._more = asyncio.Event()

    def release(self, upto: int) -> None:
        """Open it further; it never closes again."""
        self.allowed = max(self.allowed, min(self.jobs, upto))
        self._more.set()

    async def passed(self, number: int) -> None:
        """Return once this job may be handed in."""
        while number >= self.allowed:
            self._more.clear()
            await self._more.wait()
