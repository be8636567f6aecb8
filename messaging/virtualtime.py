"""Pure: the members of one level of fairness (the senders of a tenant, or the tenants) and the level's virtual time.

Members that wait and run nothing lie in a heap with outdated entries, swept when they are the majority; the few
that wait while running are scanned (no more than there are slots). Inactive members are forgotten once the level
has caught up with what they used, so millions of senders that come once leave nothing behind.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

FORGOTTEN_AT_ONCE = 4
"""Most debtors forgotten in one call: more than can come, and no call is long when thousands fall due together."""


class Member:
    """A sender among its tenant's, or a tenant among all."""

    __slots__ = ("indebted", "queued", "running", "stamp", "turn", "virtual", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        if weight <= 0:
            raise ValueError("a weight must be greater than 0")
        self.weight = weight
        self.waiting = 0
        self.running = 0
        self.virtual = 0.0
        self.turn = 0  # when it began to wait for this turn
        self.queued = False  # has a valid entry in its level's heap
        self.stamp = 0  # of that entry
        self.indebted = False  # has an entry among its level's debtors

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running)

    def rank(self) -> tuple[float, int]:
        """Lowest first: least used, longest waiting."""
        return self.virtual, self.turn


Moved = tuple[float, float]
"""By how much a start moved virtual time: its member's and the level's."""

Name = TypeVar("Name")
M = TypeVar("M", bound=Member)


class Level(Generic[Name, M]):
    """The members of one level by name, who of them waits, and the level's virtual time."""

    def __init__(self) -> None:
        self.members: dict[Name, M] = {}
        self.virtual = 0.0
        self.weights = 0.0  # of the active members
        self._active = 0
        self._heaviest = 0.0
        self._busy: dict[M, None] = {}  # waiting, and running something
        self._idle: list[tuple[float, int, int, M]] = []  # waiting, running nothing; may hold outdated entries
        self._outdated = 0
        self._debtors: list[tuple[float, int, Name, M]] = []  # inactive, but ahead of the level's virtual time

    def count(self, name: Name, member: M, waiting: int, running: int, tickets: Iterator[int]) -> None:
        """Change a member's counts and put it where it is found; forget it when neither is left."""
        waited, ran = member.waiting, member.running
        waits = member.waiting = waited + waiting
        runs = member.running = ran + running
        if not (waited or ran):
            if waits or runs:
                self._active += 1
                self.weights += member.weight
                if member.weight > self._heaviest:
                    self._heaviest = member.weight
        elif not (waits or runs):
            self._active -= 1
            # From 0 again when it can be, so that rounding errors do not add up over the years.
            self.weights = self.weights - member.weight if self._active else 0.0
        if waits and not waited:
            if member.virtual < self.virtual:
                member.virtual = self.virtual
            member.turn = next(tickets)
        if (not waits) is not (not waited) or (not runs) is not (not ran):
            self._place(member)
        if not (waits or runs):
            self._forget(name, member, next(tickets))
        if self._debtors:
            self._forget_debtors()

    def join(self, member: M, jobs: int, turn: int) -> None:
        """One that neither waits nor runs has so many jobs: what `count` does then, and nothing else."""
        member.waiting = jobs
        self._active += 1
        self.weights += member.weight
        if member.weight > self._heaviest:
            self._heaviest = member.weight
        if member.virtual < self.virtual:
            member.virtual = self.virtual
        member.turn = turn
        member.queued = True
        member.stamp += 1
        heappush(self._idle, (member.virtual, turn, member.stamp, member))
        if self._debtors:
            self._forget_debtors()

    def unrivalled(self) -> M | None:
        """Whose turn it is when nobody who runs something can be even with it; None: ask `choose`."""
        idle = self._first_idle()
        return idle if idle is not None and idle.weight >= self._heaviest else None

    def serves(self, fits: Callable[[M], bool]) -> bool:
        """Whether somebody here may have a slot. `fits` is asked of those who run something."""
        return self._first_idle() is not None or any(fits(member) for member in self._busy)

    def choose(self, fits: Callable[[M], bool]) -> M | None:
        """Whose turn it is; `fits` says who of those that run something may have one more.

        Fewest running first, by weight. A slot is the smallest part there is: who runs (by weight) less than somebody
        else would with one more is even with them, and among those virtual time decides, then the longest wait.
        """
        idle = self._first_idle()
        if idle is not None and idle.weight >= self._heaviest:
            return idle
        candidates = [member for member in self._busy if fits(member)]
        if idle is not None:
            candidates.append(idle)
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        limit = min([(member.running + 1) / member.weight for member in candidates])
        return min([member for member in candidates if member.running / member.weight < limit], key=Member.rank)

    def start(self, member: M, seconds: float, reach: float, turn: int) -> Moved:
        """One that waits starts to run, and is charged. Beyond `reach` slot-seconds (at the mean weight) no credit is
        kept, and no debt. `turn`: when its next one begins to wait.
        """
        mine, all_, weights = member.virtual, self.virtual, self.weights
        reach *= self._active / weights
        ours, level = mine, all_
        if mine < all_ - reach:
            ours = all_ - reach
        elif all_ < mine - reach:
            level = mine - reach
        member.virtual = ours = ours + seconds / member.weight
        self.virtual = level = level + seconds / weights
        member.turn = turn
        member.waiting -= 1
        member.running += 1
        if member.queued:
            # Whose turn it is stands first.
            member.queued = False
            if self._idle[0][3] is member:
                heappop(self._idle)
            else:
                self._outdated += 1
            if member.waiting:
                self._busy[member] = None
        elif not member.waiting:
            self._busy.pop(member, None)
        if self._debtors:
            self._forget_debtors()
        return ours - mine, level - all_

    def end(self, name: Name, member: M, tickets: Iterator[int]) -> None:
        """One that ran is over."""
        member.running -= 1
        if member.running:
            return
        if member.waiting:
            self._busy.pop(member, None)
            member.queued = True
            member.stamp += 1
            heappush(self._idle, (member.virtual, member.turn, member.stamp, member))
            return
        self._active -= 1
        # From 0 again when it can be, so that rounding errors do not add up over the years.
        self.weights = self.weights - member.weight if self._active else 0.0
        self._forget(name, member, next(tickets))

    def charge(self, member: M, seconds: float) -> None:
        """Add (or take back) slot-seconds of an active member."""
        member.virtual += seconds / member.weight
        self.virtual += seconds / self.weights

    def undo(self, member: M, moved: Moved) -> None:
        """As if that start had not been."""
        member.virtual -= moved[0]
        self.virtual -= moved[1]

    def _place(self, member: M) -> None:
        waits_idle = member.waiting > 0 and not member.running
        if waits_idle and member.queued:
            return  # only running changes a place in the heap
        if member.queued:
            member.queued = False
            self._outdated += 1
        if member.waiting and member.running:
            self._busy[member] = None
        else:
            self._busy.pop(member, None)
        if waits_idle:
            member.queued = True
            member.stamp += 1
            heappush(self._idle, (member.virtual, member.turn, member.stamp, member))
        if self._outdated > 64 and self._outdated * 2 > len(self._idle):
            self._idle = [entry for entry in self._idle if entry[3].queued and entry[2] == entry[3].stamp]
            heapify(self._idle)
            self._outdated = 0

    def _first_idle(self) -> M | None:
        while self._idle:
            _virtual, _turn, stamp, member = self._idle[0]
            if member.queued and stamp == member.stamp:
                return member
            heappop(self._idle)
            self._outdated -= 1
        return None

    def _forget(self, name: Name, member: M, ticket: int) -> None:
        # One that used more than its part is kept until the level has caught up, so that it cannot shed its debt.
        if member.virtual <= self.virtual:
            self.members.pop(name, None)
        elif not member.indebted:
            member.indebted = True
            heappush(self._debtors, (member.virtual, ticket, name, member))

    def _forget_debtors(self) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._debtors or self._debtors[0][0] > self.virtual:
                return
            _virtual, ticket, name, debtor = heappop(self._debtors)
            debtor.indebted = False
            if not debtor.active and self.members.get(name) is debtor:
                self._forget(name, debtor, ticket)
