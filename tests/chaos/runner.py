"""One fault run: hands jobs in by waves, strikes by the schedule, waits until all has settled, and audits."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.chaos.audit import Findings
from tests.chaos.records import Fault, Kind, Strike
from tests.chaos.strikes import NotBack, Striker, Victim

Say = Callable[[str], None]

NOTHING_MOVES_SECONDS = 90.0
"""With no job ending for this long the run is over; what has not ended counts as lost."""

AFTERMATH_SECONDS = 8.0
"""How long a thawed process is given to do harm."""

_LOOK_SECONDS = 0.02


class Load(Protocol):
    """Work for a run, and the audit of what became of it."""

    @property
    def name(self) -> str: ...
    @property
    def jobs(self) -> int: ...
    def release(self, upto: int) -> None: ...
    async def progress(self) -> int: ...
    async def settled(self) -> bool: ...
    def workers(self, kind: Kind) -> list[Victim]: ...
    async def leaders(self) -> list[Victim]: ...
    async def find(self, strikes: Sequence[Strike], until: float) -> Findings: ...


@dataclass(slots=True)
class Result:
    """A finished run."""

    name: str
    seed: int
    schedule: list[Fault]
    strikes: list[Strike] = field(default_factory=list)
    findings: list[Findings] = field(default_factory=list)
    seconds: float = 0.0
    failure: str | None = None
    """Why the run was broken off, if it was."""

    def broken(self, *, quick_servers: bool = True) -> list[str]:
        """One line per promise that was not kept; see `Findings.broken`."""
        lines = [line for found in self.findings for line in found.broken(quick_servers=quick_servers)]
        return lines if self.failure is None else [self.failure, *lines]


class Runner:
    """Performs one schedule over one or more loads. `wave_seconds`: the least time between two faults."""

    def __init__(self, striker: Striker, loads: Sequence[Load], *, wave_seconds: float = 0.0, say: Say) -> None:
        self._striker = striker
        self._loads = loads
        self._wave_seconds = wave_seconds
        self._say = say
        self._jobs = sum(load.jobs for load in loads)

    async def perform(self, name: str, seed: int, schedule: Sequence[Fault]) -> Result:
        """The whole run; broken off when something that was struck does not come back."""
        result = Result(name, seed, list(schedule))
        begun = time.monotonic()
        try:
            for fault in schedule:
                await self._wave(fault, len(schedule))
            self._release(1.0)
            await self._striker.all_back()
            await self._until(settled=True)
        except NotBack as error:
            result.failure = str(error)
        finally:
            await self._striker.release()
        result.strikes = self._striker.strikes
        thaws = [strike.released_at for strike in result.strikes if strike.fault.kind == "freeze"]
        await asyncio.sleep(max(0.0, max(thaws, default=0.0) + AFTERMATH_SECONDS - time.time()))
        until = time.time()
        result.findings = [await load.find(result.strikes, until) for load in self._loads]
        result.seconds = time.monotonic() - begun
        return result

    async def _wave(self, fault: Fault, faults: int) -> None:
        """Hand in one wave of jobs and half of the next one, which goes on while the struck one is away."""
        begun = time.monotonic()
        before, after = (fault.number - 1) / faults, fault.number / faults
        if not fault.twin:
            await self._striker.all_back()
            await asyncio.sleep(max(0.0, self._wave_seconds - (time.monotonic() - begun)))
        self._release(after + (after - before) / 2)
        await self._until(ended=self._jobs * (before + (after - before) * fault.share))
        await asyncio.sleep(fault.after)
        strike = await self._striker.strike(fault)
        ended = await self._ended()
        self._say(f"{ended:>6} of {self._jobs} ended: {fault.kind} strikes {strike.victim} (pid {strike.pid})")

    def _release(self, share: float) -> None:
        for load in self._loads:
            load.release(round(load.jobs * share))

    async def _ended(self) -> int:
        return sum([await load.progress() for load in self._loads])

    async def _until(self, ended: float = 0.0, *, settled: bool = False) -> None:
        moved_at, best = time.monotonic(), -1
        while True:
            now = await self._ended()
            if now >= ended and (not settled or all([await load.settled() for load in self._loads])):
                return
            if now > best:
                moved_at, best = time.monotonic(), now
            if time.monotonic() - moved_at > NOTHING_MOVES_SECONDS:
                self._say(f"{now} of {self._jobs} ended, and none for {NOTHING_MOVES_SECONDS:.0f} s; taking stock")
                return
            await asyncio.sleep(_LOOK_SECONDS * (10 if settled else 1))
