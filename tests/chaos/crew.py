"""The processes of a run that are not the stack's: workers of no-op jobs, relays. Restarted when they die."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from messaging.settings import inherited_environment
from stack import control
from stack.backoff import Restart
from stack.child import Child
from stack.layout import Layout
from stack.supervisor import Supervisor
from tests.chaos.strikes import Victim

RESTART = Restart(base=0.3, cap=2.0, healthy=5.0)


def member(name: str, module: str, *arguments: str) -> Child:
    """A child that runs a module of the tests."""
    command = (sys.executable, "-P", "-m", module, *arguments)
    return Child(name=name, command=command, environment=inherited_environment(), grace=15.0)


def another(data_dir: Path, child: str, name: str, command: Sequence[str], own: Mapping[str, str]) -> Child:
    """One like the stack's `child`: in its environment, but for what it has of its `own`."""
    pid = control.status(data_dir).child(child).pid
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    environment = dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)
    told = (sys.executable, "-P", "-m", *command)
    return Child(name=name, command=told, environment={**environment, **own}, grace=20.0)


class Crew:
    """Runs its members while it is entered; their output is kept in `folder`/logs."""

    def __init__(self, folder: Path, members: Sequence[Child]) -> None:
        layout = Layout(folder)
        layout.create()
        self.names = [child.name for child in members]
        self.logs = layout.logs
        self._supervisor = Supervisor(layout, members, restart=RESTART)

    def pid(self, name: str) -> int | None:
        """The process itself, not its guard; None while there is none."""
        return self._supervisor.lives[name].pid

    def victim(self, name: str) -> Victim:
        """A member that may be struck; it is back as soon as it runs again."""

        async def pid() -> int | None:
            return self.pid(name)

        async def is_back(before: int) -> bool:
            return self.pid(name) not in (None, before)

        return Victim(name, pid, is_back)

    def restarts(self) -> int:
        """How often members were started again, all together."""
        return sum(life.restarts for life in self._supervisor.lives.values())

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._supervisor.run(), name="crew")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._supervisor.stop()
        await self._task
