"""The vocabulary of a fault run: what was planned, what struck, what ran. All times are Unix seconds of one clock."""

from dataclasses import dataclass
from typing import Literal, get_args

JobKind = Literal[
    "worker",
    "api",
    "relay",
    "broker",
    "registry",
    "postgres",
    "postgres-restart",
    "freeze",
    "broker-away",
    "registry-away",
    "postgres-away",
]
"""kill -9, except: postgres-restart (fast shutdown), freeze (SIGSTOP, later SIGCONT), away (killed and kept down)."""

Kind = Literal[JobKind, "analytics"]

KINDS: tuple[Kind, ...] = get_args(JobKind)
"""What documents and no-op jobs are struck with."""
REQUEST_KINDS: tuple[Kind, ...] = (
    "worker",
    "relay",
    "analytics",
    "postgres-restart",
    "freeze",
    "broker-away",
    "registry-away",
)
"""What requests are struck with: the worker is notifications, which tells their teams."""

SERVERS: dict[Kind, str] = {
    "api": "documents-api",
    "analytics": "analytics-api",
    "broker": "kafka",
    "registry": "registry",
    "postgres": "postgres",
    "postgres-restart": "postgres",
    "broker-away": "kafka",
    "registry-away": "registry",
    "postgres-away": "postgres",
}
"""The child of the stack that each of these kinds strikes."""

HALTING = frozenset({"kafka", "postgres", "registry"})
"""Servers without which it may be that no job can start. (Without the registry: when a new schema turns up.)"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a schedule.

    share    it strikes when this part of its wave of jobs is done, and `after` seconds more have passed
    pick     which of the processes that qualify (modulo their number)
    seconds  how long the process is frozen or kept away
    twin     it does not wait until what the fault before it struck is back
    """

    number: int
    kind: Kind
    share: float
    after: float = 0.0
    pick: int = 0
    seconds: float = 0.0
    twin: bool = False


@dataclass(slots=True)
class Strike:
    """A fault that was carried out. `released_at`: thawed, or let start again. `back_at`: it answers again."""

    fault: Fault
    victim: str
    pid: int
    at: float
    released_at: float
    back_at: float | None = None

    @property
    def down(self) -> tuple[float, float] | None:
        """From when to when a server did not answer; None for what is no server."""
        halts = SERVERS.get(self.fault.kind) in HALTING
        return (self.at, self.released_at if self.back_at is None else self.back_at) if halts else None

    @property
    def kept_down(self) -> tuple[float, float] | None:
        """The part of it that was on purpose."""
        return None if self.down is None else (self.at, self.released_at)

    @property
    def recovery(self) -> float | None:
        """Seconds from the moment it was let go until it answered."""
        return None if self.back_at is None else self.back_at - self.released_at


@dataclass(frozen=True, slots=True)
class Started:
    """A handler began. `run` is its job and attempt; the same run a second time is a re-run."""

    consumer: str
    job: str
    attempt: int
    pid: int
    at: float

    @property
    def run(self) -> tuple[str, int]:
        """What is charged once however often it has to be started."""
        return self.job, self.attempt


Outcome = Literal["done", "failed", "fenced", "outage", "stopped"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler came to its end, however it ended."""

    consumer: str
    job: str
    attempt: int
    pid: int
    at: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Planned:
    """A job as it was handed in. `killer`: it kills its process. `failures`: attempts that fail when told to."""

    job: str
    consumer: str
    key: str
    number: int
    at: float
    killer: bool = False
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """One row that a job wrote in its transaction, in the order of `place`."""

    job: str
    place: int
    at: float
