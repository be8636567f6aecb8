"""How much is measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Together under four minutes on two cores, a stack of its own included.

    rounds   each measures the part, then its bare loop     senders  that wait while the scheduler picks
    rows     of the outbox's backlog                        rate     events and jobs a second
    jobs     no-op jobs over 1,000 keys, without ledger     seconds  for which they come, a round
    """

    rounds: int = 3
    rows: int = 100_000
    jobs: int = 100_000
    rate: int = 200
    seconds: float = 3.0
    senders: int = 100_000

    @property
    def requests(self) -> float:
        """POSTs a second, and as many GETs: fewer than jobs, for each document is read on the same machine, too."""
        return self.rate / 4

    @property
    def sent(self) -> int:
        """How many events or jobs come at `rate` in a round."""
        return max(1, round(self.rate * self.seconds))
