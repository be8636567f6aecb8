"""What one child process is: its command, what it needs, how it is asked whether it is ready."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from stack.patience import INFRA_SECONDS

INFRA = ("postgres", "kafka", "registry")
"""The servers; they start before the deploy step, and so before every service."""


class NotReady(Exception):
    """The child runs but does not answer as it should. The message says what it answered."""


@dataclass(frozen=True, slots=True)
class System:
    """The system user a child runs as, when that is not the supervisor's own."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Child:
    """How to run one child.

    ports         where it listens, to tell why it could not start
    needs         names of the children that must be ready before this one starts, also before a restart
    prepare       run before each start, once what it needs is ready; may be slow, must be safe to repeat
    probe         raises when the child is not ready (NotReady, or whatever its client raises)
    alive         raises when the child should be started anew; without it, `probe` is asked that too
    patience      seconds a child that was up may go without answering that, before it is ended
    once          a step, not a server: ready when it has exited with 0
    stop_signal   asks for a clean end; after `grace` seconds the whole process group is killed
    last_signal   what the kernel sends should even the guard be killed
    refusal       exit code of a start that is not to be tried again, unless it was ready with these variables before
    ready_within  seconds from start to ready (with `alive`: to alive), else it is ended and counts as failed
    """

    name: str
    command: tuple[str, ...]
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    ports: tuple[int, ...] = ()
    needs: tuple[str, ...] = ()
    prepare: Callable[[], Awaitable[None]] | None = None
    probe: Callable[[], Awaitable[None]] | None = None
    alive: Callable[[], Awaitable[None]] | None = None
    patience: float = INFRA_SECONDS
    once: bool = False
    user: System | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    last_signal: signal.Signals = signal.SIGKILL
    grace: float = 10.0
    refusal: int | None = None
    ready_within: float = 90.0
