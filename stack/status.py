"""How a stack is doing, as it is told through the control socket and drawn on a terminal."""

from collections.abc import Iterable, Mapping
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
    REFUSED = "refused"  # what it was given; not started again until a person has acted
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"  # a step that ended well

    @property
    def fit(self) -> bool:
        """Whether those that need the child may start."""
        return self in (Phase.READY, Phase.DONE)

    @property
    def settled(self) -> bool:
        """Whether a start has come to its end, good or bad."""
        return self.fit or self is Phase.REFUSED


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

    @property
    def state(self) -> str:
        """Its phase, and why."""
        return f"{self.phase.value}: {self.message}" if self.message else self.phase.value


@dataclass(frozen=True, slots=True)
class Status:
    """The stack as a whole. `pid` and `memory_bytes` are the supervisor's; `ready`: every child is."""

    pid: int
    started_at: float
    ready: bool
    stopping: bool
    memory_bytes: int
    children: tuple[ChildStatus, ...]

    @property
    def ill(self) -> tuple[ChildStatus, ...]:
        """The children that should be ready and are not."""
        return tuple(child for child in self.children if not child.ready)

    @property
    def refused(self) -> tuple[ChildStatus, ...]:
        """The children that stay down until a person has acted."""
        return tuple(child for child in self.children if child.phase is Phase.REFUSED)

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


def complaints(ill: Iterable[ChildStatus]) -> list[str]:
    """A sentence for each reason why children are not ready, naming all that have it, with what to read next."""
    alike: dict[str, list[ChildStatus]] = {}
    for child in ill:
        alike.setdefault(child.state, []).append(child)
    return [_complaint([child.name for child in children], children[0]) for children in alike.values()]


def _complaint(names: list[str], first: ChildStatus) -> str:
    # What was stopped by hand says itself how it is started; nothing about it is in its log.
    look = "" if first.phase is Phase.STOPPED else f"; see `workbot logs {first.name}`"
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not ready ({first.state}){look}."
