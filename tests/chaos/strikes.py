"""Carries faults out: finds the process, strikes it, lets it go again, and waits until it answers."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from stack import control
from stack.status import ChildStatus
from tests.chaos.records import SERVERS, Fault, Kind, Strike

BACK_WITHIN = 200.0
"""Seconds a process may take from being let go until it answers: two tries of the stack."""

_LOOK_SECONDS = 0.1


class NotBack(AssertionError):
    """What was struck did not come back, or could not be found."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that may be struck. `pid`: where it is now; `is_back`: whether one other than that pid answers.

    `guard`: the process that would notice its death, for those that can be kept away.
    """

    name: str
    pid: Callable[[], Awaitable[int | None]]
    is_back: Callable[[int], Awaitable[bool]]
    guard: Callable[[], Awaitable[int | None]] | None = None


def of_stack(data_dir: Path, name: str) -> Victim:
    """A child of the stack, struck while it is ready."""

    async def child() -> ChildStatus:
        return (await asyncio.to_thread(control.status, data_dir)).child(name)

    async def pid() -> int | None:
        now = await child()
        return now.pid if now.ready else None

    async def guard() -> int | None:
        return (await child()).guard_pid

    async def is_back(before: int) -> bool:
        now = await child()
        return now.ready and now.pid not in (None, before)

    return Victim(name, pid, is_back, guard)


class Striker:
    """Strikes for one run. `workers` and `leaders` say who qualifies as a worker, and who leads a relay now."""

    def __init__(
        self,
        data_dir: Path,
        workers: Callable[[Kind], list[Victim]],
        leaders: Callable[[], Awaitable[list[Victim]]],
    ) -> None:
        self._data_dir = data_dir
        self._workers = workers
        self._leaders = leaders
        self._under_way: set[asyncio.Task[None]] = set()
        self.strikes: list[Strike] = []

    async def strike(self, fault: Fault) -> Strike:
        """Strike now; what follows (thaw, restart) goes on by itself until `all_back`."""
        victim, pid = await self._find(fault)
        kept_down = fault.kind.endswith("-away")
        guard = await victim.guard() if kept_down and victim.guard is not None else None
        if guard is not None:
            # A guard that is stopped does not see the death, so nothing is started again until it goes on.
            os.kill(guard, signal.SIGSTOP)
        os.kill(pid, _signal(fault))
        now = time.time()
        strike = Strike(fault, victim.name, pid, now, now + fault.seconds)
        self.strikes.append(strike)
        task = asyncio.create_task(self._see_through(strike, victim, guard), name=f"fault-{fault.number}")
        self._under_way.add(task)
        return strike

    async def all_back(self) -> None:
        """Return once everything that was struck answers again. Raises NotBack."""
        while self._under_way:
            done, _ = await asyncio.wait(self._under_way)
            self._under_way -= done
            for task in done:
                task.result()

    async def release(self) -> None:
        """Let go of everything at once: nothing may stay frozen when a run is broken off."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self._under_way.clear()

    async def _find(self, fault: Fault) -> tuple[Victim, int]:
        deadline = time.monotonic() + BACK_WITHIN
        while time.monotonic() < deadline:
            for victim in await self._candidates(fault):
                pid = await victim.pid()
                if pid is not None:
                    return victim, pid
            await asyncio.sleep(_LOOK_SECONDS)
        raise NotBack(f"fault {fault.number}: no {fault.kind} to strike within {BACK_WITHIN:g} s")

    async def _candidates(self, fault: Fault) -> list[Victim]:
        if fault.kind in SERVERS:
            return [of_stack(self._data_dir, SERVERS[fault.kind])]
        found = await self._leaders() if fault.kind == "relay" else self._workers(fault.kind)
        turn = fault.pick % max(1, len(found))
        return found[turn:] + found[:turn]

    async def _see_through(self, strike: Strike, victim: Victim, guard: int | None) -> None:
        try:
            await asyncio.sleep(strike.fault.seconds)
        finally:
            held = strike.pid if strike.fault.kind == "freeze" else guard
            if held is not None:
                # Another fault may have killed it meanwhile.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(held, signal.SIGCONT)
            strike.released_at = time.time()
        if strike.fault.kind == "freeze":
            strike.back_at = strike.released_at
            return
        deadline = time.monotonic() + BACK_WITHIN
        while not await victim.is_back(strike.pid):
            if time.monotonic() >= deadline:
                raise NotBack(
                    f"{victim.name} did not come back within {BACK_WITHIN:g} s of fault {strike.fault.number}"
                )
            await asyncio.sleep(_LOOK_SECONDS)
        strike.back_at = time.time()


def _signal(fault: Fault) -> signal.Signals:
    match fault.kind:
        case "freeze":
            return signal.SIGSTOP
        case "postgres-restart":
            return signal.SIGINT
        case _:
            return signal.SIGKILL
