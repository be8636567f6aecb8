"""Pure: the members of one level of fairness (the senders of a tenant, or the tenants) and the level's virtual time.

Members that wait and run nothing lie in a heap with outdated entries, swept when they are the majority; the few
that wait while running are scanned (no more than there are slots). Inactive members are forgotten once the level
has caught up with what they used, so millions of senders that come once leave nothing behind.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar


class Member:
    """A sender among its tenant's, or a tenant among all."""

    __slots__ = ("queued", "running", "stamp", "turn", "virtual", "waiting", "weight")

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

    @property
    def active(self) -> bool:
        return self.waiting > 0 or self.running > 0

    def rank(self) -> tuple[float, float, int]:
        """Lowest first: fewest running, least used, longest waiting."""
        return self.running / self.weight, self.virtual, self.turn


Name = TypeVar("Name")
M = TypeVar("M", bound=Member)


class Level(Generic[Name, M]):
    """The members of one level by name, who of them waits, and the level's virtual time."""

    def __init__(self) -> None:
        self.members: dict[Name, M] = {}
        self.virtual = 0.0
        self.weights = 0.0  # of the active members
        self.busy: dict[M, None] = {}  # waiting, and running something
        self._idle: list[tuple[float, int, int, M]] = []  # waiting, running nothing; may hold outdated entries
        self._outdated = 0
        self._debtors: list[tuple[float, int, Name, M]] = []  # inactive, but ahead of the level's virtual time

    def count(self, name: Name, member: M, waiting: int, running: int, tickets: "count[int]") -> None:
        """Change a member's counts and put it where it is found; forget it when neither is left."""
        was_active, was_waiting = member.active, member.waiting > 0
        member.waiting += waiting
        member.running += running
        if member.active and not was_active:
            self.weights += member.weight
        elif was_active and not member.active:
            self.weights -= member.weight
        if member.waiting and not was_waiting:
            member.virtual = max(member.virtual, self.virtual)
            member.turn = next(tickets)
        self._place(member)
        if not member.active:
            self._forget(name, member, next(tickets))

    def _place(self, member: M) -> None:
        waits_idle = member.waiting > 0 and not member.running
        if waits_idle and member.queued:
            return  # only running changes a place in the heap
        if member.queued:
            member.queued = False
            self._outdated += 1
        if member.waiting and member.running:
            self.busy[member] = None
        else:
            self.busy.pop(member, None)
        if waits_idle:
            member.queued = True
            member.stamp += 1
            heappush(self._idle, (member.virtual, member.turn, member.stamp, member))
        if self._outdated > 64 and self._outdated * 2 > len(self._idle):
            self._idle = [entry for entry in self._idle if entry[3].queued and entry[2] == entry[3].stamp]
            heapify(self._idle)
            self._outdated = 0

    def idle(self) -> M | None:
        """Whose turn it is among those that run nothing."""
        while self._idle:
            _virtual, _turn, stamp, member = self._idle[0]
            if member.queued and stamp == member.stamp:
                return member
            heappop(self._idle)
            self._outdated -= 1
        return None

    def charge(self, member: M, seconds: float) -> None:
        member.virtual += seconds / member.weight
        self.virtual += seconds / max(self.weights, member.weight)

    def _forget(self, name: Name, member: M, ticket: int) -> None:
        # One that used more than its part is kept until the level has caught up, so that it cannot shed its debt.
        if member.virtual <= self.virtual:
            self.members.pop(name, None)
        else:
            heappush(self._debtors, (member.virtual, ticket, name, member))
        while self._debtors and self._debtors[0][0] <= self.virtual:
            _virtual, _ticket, name, debtor = heappop(self._debtors)
            if not debtor.active and debtor.virtual <= self.virtual and self.members.get(name) is debtor:
                del self.members[name]
