"""One embedded stack as a whole: its lock, its ports, its children, its desk."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from messaging.errors import Misconfigured
from stack import given, keys, locks, memory, pghome, plan, ports, sentences, services, sockets, state
from stack.artifacts import Progress, Store
from stack.desk import Desk, Refused
from stack.layout import Layout
from stack.life import Life
from stack.settings import StackSettings
from stack.status import ChildStatus, Status
from stack.supervisor import Supervisor

log = structlog.get_logger("stack")

EARLIER_RUN_SECONDS = 30.0
"""How long the children of a run that was killed may still take to end."""

ASKING_SECONDS = 0.3


class AlreadyRunning(Misconfigured):
    """A stack runs on this data directory. `pid` is its supervisor's, when it has told already."""

    def __init__(self, layout: Layout) -> None:
        known = state.read(layout.state)
        self.pid = known.pid
        self.data_dir = layout.root
        super().__init__(f"A stack is already running on {layout.root} (pid {known.pid or 'not known yet'}).")


class Embedded:
    """Opened, it holds the data directory and its ports are settled; `run` brings the children up and stays.

    Raises on opening: AlreadyRunning, ports.PortTaken, Misconfigured.
    """

    def __init__(
        self,
        settings: StackSettings,
        progress: Progress,
        *,
        services: bool = True,
        fixed_ports: Mapping[str, int] | None = None,
        service_environment: Mapping[str, str] | None = None,
        ephemeral: bool = False,
    ) -> None:
        self.layout = Layout(settings.data_dir.expanduser().resolve())
        self._settings = settings
        self._store = Store(settings.cache_dir, progress, settings.maven_url)
        self._progress = progress
        self._services = services
        self._service_environment = service_environment or {}
        self._ephemeral = ephemeral
        self._started_at = time.time()
        self._lock: int | None = None
        self._claims = ports.Claims()
        self._stopping = False
        self._usual_ports = ports.DEFAULTS if services else ports.INFRASTRUCTURE
        # Ports of services that are not started are nobody's business here, though they may be set.
        self._fixed_ports = {
            name: port
            for name, port in {**settings.fixed_ports(), **(fixed_ports or {})}.items()
            if name in self._usual_ports or name not in ports.DEFAULTS
        }

    def __enter__(self) -> "Embedded":
        self.layout.create()
        # Those who only ask whether one runs hold the lock for an instant.
        self._lock = locks.wait_for(self.layout.supervisor_lock, ASKING_SECONDS)
        if self._lock is None:
            raise AlreadyRunning(self.layout)
        try:
            self._open()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        state.write(self.layout.state, self._state)
        self.layout.control_socket.unlink(missing_ok=True)
        if self._ephemeral:
            delete_data(self.layout)
        self._release()

    def _open(self) -> None:
        if locks.is_held(self.layout.children_lock):
            self._progress.note("Waiting for what an earlier run left behind to end …")
            descriptor = locks.wait_for(self.layout.children_lock, EARLIER_RUN_SECONDS)
            if descriptor is None:
                raise Misconfigured(
                    f"Processes of an earlier run on {self.layout.root} are still alive; end them first."
                )
            os.close(descriptor)
        keys.ensure(self.layout)
        self.home = pghome.find(self.layout, self._settings.postgres_user)
        known = state.read(self.layout.state)
        self.ports = ports.choose(self._fixed_ports, known.ports, self._claims.take, self._usual_ports, known.fixed)
        fixed = [name for name in {**known.ports, **self.ports} if name in known.fixed or name in self._fixed_ports]
        self._state = state.State({**known.ports, **self.ports}, fixed=fixed, given=self._given())
        self.plan = plan.make(self.layout, self.home, self.ports, self._store)
        self.endpoints = self.plan.endpoints()
        children = self.plan.infrastructure()
        if self._services:
            children += services.children(self.layout, self.endpoints, self._service_environment)
        self.supervisor = Supervisor(self.layout, children, self._changed)
        state.write(self.layout.state, replace(self._state, pid=os.getpid()))

    def _given(self) -> dict[str, str]:
        return given.marks(self.layout, self._service_environment)

    def _release(self) -> None:
        self._claims.release()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def fetch(self) -> None:
        """Download what is missing. Raises DownloadFailed."""
        self._store.jars(plan.JARS)
        self._store.unpacked(plan.REGISTRY)

    def _changed(self, _life: Life) -> None:
        pids = {name: life.pid for name, life in self.supervisor.lives.items() if life.pid}
        try:
            state.write(self.layout.state, replace(self._state, pid=os.getpid(), children=pids))
        except OSError as error:
            # A full disk is no reason to stop the children; the next change writes it again.
            log.warning("the state could not be written", error=str(error))

    async def run(self) -> None:
        """Keep the stack running until it is asked to stop (by a signal or at the desk)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        handlers = {
            "status": self._status,
            "endpoints": self._endpoints,
            "restart": self._restart,
            "halt": self._halt,
            "stop": self._stop,
        }
        async with Desk(sockets.listen(self.layout.control_socket), handlers):
            await self.supervisor.run()

    def stop(self) -> None:
        """Ask for the end. The second time, children are killed instead of asked."""
        if self._stopping:
            self.supervisor.hurry()
        self._stopping = True
        self.supervisor.stop()

    async def _stop(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        self._stopping = True
        self.supervisor.stop()
        return {}

    async def _endpoints(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return self.endpoints.as_json()

    async def _halt(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = self._part(request)
        try:
            await self.supervisor.halt(name)
        except TimeoutError:
            raise Refused(f"{name} was told to stop and is not gone yet; see its log.") from None
        return {}

    async def _restart(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, overrides = self._part(request), request.get("env")
        if not isinstance(overrides, dict):
            raise Refused("env must be an object of strings.")
        try:
            await self.supervisor.restart(name, {str(key): str(value) for key, value in overrides.items()})
        except Misconfigured as error:
            raise Refused(str(error)) from None
        except TimeoutError:
            raise Refused(f"{name} was restarted but is not ready yet; see its log.") from None
        return {}

    def _part(self, request: Mapping[str, Any]) -> str:
        """The part that a request names. Raises Refused when there is none, or it is not one that keeps running."""
        name = request.get("name")
        lives = self.supervisor.lives
        if name not in lives:
            servers = ", ".join(known for known, life in lives.items() if not life.child.once)
            raise Refused(f"There is no part named {name!r}. There are: {servers}.")
        if lives[name].child.once:
            raise Refused(
                f"{name} is a step that runs once, at the start: it cannot be stopped or started. `workbot migrate`, "
                "`workbot topics create` and `workbot schemas register` are what it does."
            )
        return str(name)

    async def status(self) -> Status:
        """How everything is, memory included."""
        lives = self.supervisor.lives
        sizes = await asyncio.to_thread(memory.trees, {name: life.pid for name, life in lives.items() if life.pid})
        children = tuple(
            ChildStatus(
                name=name,
                phase=life.phase,
                address=life.child.address,
                message=sentences.for_folder(life.message, self.layout.root),
                since=life.since,
                restarts=life.restarts,
                pid=life.pid,
                guard_pid=None if life.run is None else life.run.guard_pid,
                memory_bytes=sizes.get(name),
            )
            for name, life in lives.items()
        )
        return Status(
            pid=os.getpid(),
            started_at=self._started_at,
            ready=self.supervisor.ready,
            stopping=self._stopping,
            memory_bytes=memory.own(os.getpid()),
            children=children,
        )

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return (await self.status()).as_json()


def delete_data(layout: Layout) -> None:
    """Delete everything a stack has written. Nothing may run on it."""
    shutil.rmtree(pghome.closed_data(layout), ignore_errors=True)
    shutil.rmtree(layout.root)
