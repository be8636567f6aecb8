"""What the supervisor knows of one child."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.child import Child
from stack.guarded import Guarded
from stack.status import Phase


@dataclass(slots=True)
class Life:
    """One child from the start of the stack to its end. `since` is Unix time, `failures` counts deaths in a row,
    `planned` the starts that were asked for. `halted`: stays down until a start is asked for. `proven`: it was ready
    once with the variables it has.
    """

    child: Child
    phase: Phase = Phase.WAITING
    message: str = ""
    since: float = field(default_factory=time.time)
    starts: int = 0
    failures: int = 0
    planned: int = 0
    overrides: Mapping[str, str] = field(default_factory=dict, repr=False)
    run: Guarded | None = None
    asked: bool = False
    halted: bool = False
    proven: bool = False

    @property
    def restarts(self) -> int:
        """Starts after the first that nobody asked for."""
        return max(0, self.starts - 1 - self.planned)

    @property
    def pid(self) -> int | None:
        """The child's own process, while there is one."""
        return None if self.run is None else self.run.pid
