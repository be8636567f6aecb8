"""How a stack is doing, as it is told through the control socket and drawn on a terminal."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Where a child is in its life."""

    WAITING = "waiting"  # for what it needs
    PREPARING = "preparing"
    STARTING = "starting"  # runs, does not answer yet
    READY = "ready"
    SILENT = "silent"  # was ready, does not answer now
    DIED = "died"  # starts again after a pause
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"  # a step that ended well

    @property
    def fit(self) -> bool:
        """Whether those that need the child may start."""
        return self in (Phase.READY, Phase.DONE)


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """One child. `since` is Unix time; `memory_bytes` includes its own children and counts shared pages once."""

    name: str
    phase: Phase
    address: str
    message: str
    since: float
    restarts: int
    pid: int | None
    guard_pid: int | None
    memory_bytes: int | None

    @property
    def ready(self) -> bool:
        return self.phase.fit


@dataclass(frozen=True, slots=True)
class Status:
    """The stack as a whole. `pid` and `memory_bytes` are the supervisor's; `ready`: every child is."""

    pid: int
    started_at: float
    ready: bool
    stopping: bool
    memory_bytes: int
    children: tuple[ChildStatus, ...]

    def child(self, name: str) -> ChildStatus:
        """Raises KeyError for a name that is not part of the stack."""
        for child in self.children:
            if child.name == name:
                return child
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """The same, made of what JSON knows."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Status":
        children = tuple(ChildStatus(**{**child, "phase": Phase(child["phase"])}) for child in raw["children"])
        return cls(**{**raw, "children": children})
