"""Pure: when failures say more about what all jobs need than about the jobs.

    Breaker  a dependency that answers nobody: jobs wait for it, uncharged
    Fuse     a consumer that fails everybody (a bad deploy): it stops instead of dead-lettering the whole backlog

Both close by themselves: the gate lets the next jobs try after each pause, and one that goes through ends it. Time is
passed in, in seconds.
"""

from collections import Counter, deque

from messaging.message import Key

RUNS, JOBS = 10, 3
"""Runs that a dependency failed one after the other, none going through between, and how many different jobs they
must be of: one poisonous job alone ends as a dead letter. When a third of all runs fail by chance, ten in a row come
once in 60,000 runs; even then a short pause is all that follows.
"""

CHARGE_SECONDS = 3600.0
"""While a breaker is open, one failed run is charged this often: jobs that no provider can bear, alone in the queue,
come to an end, and an outage of an hour costs nobody anything.
"""

WINDOW = 100
"""Ended jobs that the fuse looks back on."""

LARGEST_PART = 0.25
"""No sender may account for more than this part of the deaths: a few with broken files are no bad deploy."""

CLOSING_PART = 0.5
"""A blown fuse closes when the share of deaths has come down to this part of what blew it."""

TRICKLE_SECONDS = 5.0
"""While the fuse is blown, one job may die this often: truly broken ones, alone in the queue, come to an end."""


class Breaker:
    """Counts the runs that each resource failed since a job last went through."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._jobs: dict[str, set[str]] = {}
        self._next_charge: dict[str, float] = {}

    def failed(self, resource: str, job: str, now: float) -> bool:
        """`resource` failed a run of this job. Whether its breaker is open: then the run is not to be charged."""
        self._runs[resource] += 1
        jobs = self._jobs.setdefault(resource, set())
        if len(jobs) < JOBS:
            jobs.add(job)
        if self._runs[resource] < RUNS or len(jobs) < JOBS:
            return False
        if now >= self._next_charge.setdefault(resource, now + CHARGE_SECONDS):
            self._next_charge[resource] = now + CHARGE_SECONDS
            return False
        return True

    def passed(self) -> None:
        """A job went through."""
        if self._runs:
            self._runs.clear()
            self._jobs.clear()
            self._next_charge.clear()


class Fuse:
    """Blows when more than `share` of the last jobs would die of the same reason, over the senders.

    Jobs that die of that reason are then held, but for a trickle, and the others go on; it closes when the share has
    come down. A share of 1 or more never blows.
    """

    def __init__(self, share: float, window: int = WINDOW) -> None:
        self._share = share
        self._most = int(share * window)
        self._ended: deque[tuple[str, Key] | None] = deque(maxlen=window)
        self._blown: str | None = None
        self._next_death = 0.0
        self._held: set[str] = set()

    def holds(self, reason: str, key: Key, job: str, now: float) -> bool:
        """A job of this sender is about to die. True: it must not, the fuse is blown."""
        if self._share >= 1.0:
            return False
        if job not in self._held:
            # One that is held comes again and again, and is one death all the same.
            self._ended.append((reason, key))
        if self._blown is None:
            senders = self._senders(reason)
            deaths = senders.total()
            if deaths <= self._most or max(senders.values()) > deaths * LARGEST_PART:
                return False
            self._blown, self._next_death = reason, now + TRICKLE_SECONDS
        elif reason != self._blown:
            return False
        elif now >= self._next_death:
            self._next_death = now + TRICKLE_SECONDS
            self._held.discard(job)
            return False
        self._held.add(job)
        return True

    def passed(self) -> None:
        """A job went through."""
        self._ended.append(None)
        if self._blown is not None and self._senders(self._blown).total() <= self._most * CLOSING_PART:
            self._blown = None
            self._held.clear()

    def _senders(self, reason: str) -> Counter[Key]:
        return Counter(ended[1] for ended in self._ended if ended is not None and ended[0] == reason)
