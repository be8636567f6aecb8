"""The supervisor: one asyncio process that starts children in order, restarts dead ones and stops all in reverse."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from messaging.errors import MessagingError, Misconfigured
from stack import order, ports, refusal
from stack.backoff import Restart
from stack.child import Child
from stack.guarded import Guarded
from stack.layout import Layout
from stack.life import Life
from stack.status import Phase
from stack.watch import Watch

HALT_SECONDS = 10.0
"""How long a child may take to be gone after its grace."""

log = structlog.get_logger("stack")


class Supervisor:
    """Keeps `children` running until `stop` is called. `on_change` hears of every new phase."""

    def __init__(
        self,
        layout: Layout,
        children: Sequence[Child],
        on_change: Callable[[Life], None] = lambda _life: None,
        restart: Restart | None = None,
    ) -> None:
        self.lives = {child.name: Life(child) for child in children}
        self._needs = {child.name: child.needs for child in children}
        order.check(self._needs)
        self._layout = layout
        self._on_change = on_change
        self._restart = restart or Restart()
        self._changed = asyncio.Condition()
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether every child is."""
        return all(life.phase.fit for life in self.lives.values())

    def stop(self) -> None:
        """Ask `run` to stop everything and return."""
        self._stopping.set()

    def hurry(self) -> None:
        """End whatever still runs at once."""
        for life in self.lives.values():
            if life.run is not None:
                life.run.kill()

    async def run(self) -> None:
        """Start, keep and finally stop the children; returns when the last one is gone."""
        keepers = {name: asyncio.create_task(self._keep(life), name=name) for name, life in self.lives.items()}
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            watched: set[asyncio.Task[object]] = {stopping, *keepers.values()}
            while not self._stopping.is_set():
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stopping.cancel()
            await self._stop_all(keepers)

    async def until_ready(self) -> None:
        """Return once every child is ready."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.ready)

    async def restart(self, name: str, overrides: Mapping[str, str]) -> None:
        """Stop a child and start it with these environment variables on top of its own; return once it is ready.

        The variables stay for later restarts, also after a crash, until the next call. Raises KeyError for an unknown
        name, Misconfigured when the child refuses them, TimeoutError when it is not ready in time.
        """
        life = self.lives[name]
        life.halted = False
        life.overrides = dict(overrides)
        life.failures, life.proven = 0, False
        before = life.starts
        life.asked = True
        if life.run is not None:
            await self._enter(life, Phase.STOPPING, "asked to restart")
            life.run.release()
        async with self._changed:
            self._changed.notify_all()
            async with asyncio.timeout(life.child.grace + life.child.ready_within):
                await self._changed.wait_for(lambda: life.starts > before and life.phase.settled)
        if life.phase is Phase.REFUSED:
            raise Misconfigured(f"{name} {life.message}")

    async def halt(self, name: str) -> None:
        """Stop a child and keep it down until `restart`; return once it is. Raises KeyError, TimeoutError."""
        life = self.lives[name]
        life.halted = life.asked = True
        if life.run is not None:
            await self._enter(life, Phase.STOPPING, _by_hand(name))
            life.run.release()
        async with self._changed:
            self._changed.notify_all()
            async with asyncio.timeout(life.child.grace + HALT_SECONDS):
                await self._changed.wait_for(lambda: life.phase is Phase.STOPPED)

    async def _enter(self, life: Life, phase: Phase, message: str = "") -> None:
        if (life.phase, life.message) == (phase, message):
            return
        if life.phase is not phase:
            log.info("child", child=life.child.name, phase=phase, message=message)
            life.since = time.time()
        life.phase, life.message = phase, message
        life.proven = life.proven or phase is Phase.READY
        self._on_change(life)
        async with self._changed:
            self._changed.notify_all()

    async def _keep(self, life: Life) -> None:
        """One child's whole life: wait, prepare, run, and after a death the same again."""
        while True:
            if life.halted:
                await self._enter(life, Phase.STOPPED, _by_hand(life.child.name))
                async with self._changed:
                    await self._changed.wait_for(lambda: not life.halted)
            await self._enter(life, Phase.WAITING)
            async with self._changed:
                await self._changed.wait_for(
                    lambda: life.halted or order.may_start(life.child.name, self._needs, self._fit())
                )
            if life.halted:
                continue
            life.asked = False
            life.starts += 1
            began = time.monotonic()
            try:
                fault = await self._live(life)
            except refusal.Refused as refused:
                await self._enter(life, Phase.REFUSED, str(refused))
                async with self._changed:
                    await self._changed.wait_for(lambda: life.asked)
                life.planned += 1
                continue
            except MessagingError as error:
                log.warning("child could not be started", child=life.child.name, error=str(error))
                fault = str(error).rstrip(".")
            except Exception as error:  # a child that cannot be started is tried again, and shown
                log.exception("child could not be started", child=life.child.name)
                fault = f"{type(error).__name__}: {error}"
            if fault is None:
                return
            if life.asked:
                life.planned += 1
                continue
            life.failures = self._restart.failures(life.failures, time.monotonic() - began)
            delay = self._restart.delay(life.failures)
            taken = [str(port) for port in life.child.ports if not ports.is_free(port)]
            if taken:
                fault += f"; port {', '.join(taken)} is taken, `workbot down` and `up` choose another"
            await self._enter(life, Phase.DIED, f"{fault}; starts again in {delay:g} s")
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._changed.wait_for(lambda: life.asked)

    def _fit(self) -> set[str]:
        return {name for name, life in self.lives.items() if life.phase.fit}

    async def _live(self, life: Life) -> str | None:
        """Run the child once. Returns what ended it, or None for a step that ended well."""
        child = life.child
        if child.prepare is not None:
            await self._enter(life, Phase.PREPARING)
            await child.prepare()
            if life.asked:
                return ""
        environment = {**child.environment, **life.overrides}
        await self._enter(life, Phase.STARTING)
        output = self._layout.log(child.name)
        begin = output.stat().st_size if output.exists() else 0
        run = await Guarded.start(child, environment, output, self._layout.children_lock)
        life.run = run
        if life.asked:
            run.release()
        exit_ = asyncio.create_task(run.wait())
        watch = asyncio.create_task(self._watch(life).until_given_up())
        try:
            await asyncio.wait([exit_, watch], return_when=asyncio.FIRST_COMPLETED)
            if not exit_.done():
                log.warning("child is ended", child=child.name, pid=run.pid, reason=watch.result())
                run.release()
            code = await exit_
        finally:
            watch.cancel()
            run.release()
            if not exit_.done():
                await exit_
            life.run = None
        if child.once and code == 0:
            await self._enter(life, Phase.DONE)
            return None
        if watch.done() and not watch.cancelled():
            return watch.result()
        if code == child.refusal and not (life.proven or life.asked) and all(map(ports.is_free, child.ports)):
            # What was ready with these settings before is not refused for them: that may pass, and is tried again.
            raise refusal.Refused(f"ended with {code}: {refusal.said(output, begin)}; {refusal.REMEDY}")
        return _ended(code)

    def _watch(self, life: Life) -> Watch:
        async def enter(phase: Phase, message: str) -> None:
            await self._enter(life, phase, message)

        return Watch(
            life.child,
            enter,
            stopping=lambda: life.phase is Phase.STOPPING,
            excused=lambda: not order.may_start(life.child.name, self._needs, self._fit()),
        )

    async def _stop_all(self, keepers: Mapping[str, "asyncio.Task[None]"]) -> None:
        """Stop each child once nothing that runs needs it."""
        running = set(self.lives)

        async def stop(name: str) -> None:
            life = self.lives[name]
            async with self._changed:
                await self._changed.wait_for(lambda: order.may_stop(name, self._needs, running))
            if life.run is not None:
                await self._enter(life, Phase.STOPPING)
            keepers[name].cancel()
            await asyncio.wait([keepers[name]])
            running.discard(name)
            await self._enter(life, Phase.STOPPED)

        await asyncio.gather(*(stop(name) for name in self.lives))


def _by_hand(name: str) -> str:
    return f"by hand; `workbot start {name}` starts it"


def _ended(code: int) -> str:
    return f"ended by signal {code - 128}" if code > 128 else f"ended with {code}"
