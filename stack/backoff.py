"""How long a dead child waits before it starts again: pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restart:
    """Exponential, in seconds: `base`, twice that, … up to `cap`. A run of `healthy` seconds forgives the past."""

    base: float = 0.5
    cap: float = 30.0
    healthy: float = 30.0

    def failures(self, before: int, ran: float) -> int:
        """The count of failures in a row after a run that lasted `ran` seconds."""
        return 1 if ran >= self.healthy else before + 1

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row (1 or more)."""
        return float(min(self.cap, self.base * 2 ** min(failures - 1, 30)))
