"""Pure: whose turn is it. Guarantee and lending over virtual time, by tenant and then by sender.

A sender is under its guarantee while it runs fewer than `per_key` jobs and its tenant fewer than the tenant's share:
total x weight / weights of the active tenants, rounded down, at least 1. With one tenant the share is the total.
Rounding and the cap at `per_key` leave slots that nobody is owed; those are lent like idle ones.

A free slot goes to a sender under its guarantee: of the tenant, and inside it the sender, with the fewest running
(by weight), then the least virtual time, then the longest wait. Only when none waits is it given beyond a guarantee,
in the same order: beyond the tenant's share always (a share is no cap), beyond `per_key` when the policy lends.

Virtual time is slot-seconds used, divided by weight (start-time fair queueing, Goyal et al. 1996, with the estimate
of a start corrected by what it took). A level's own virtual time advances by the slot-seconds given, divided by all
active weights, so it is what a member that was always served fairly would have used. Who wakes up joins there:
credit is not hoarded by staying away, and debt is not lost by a short absence.

Both are bounded by two of the longest recent jobs. What a member borrows while slots are idle would else be held
against it for hours once they are scarce, and one that runs all it may (`per_key` without lending) would collect
credit all the while for the rest of its part, which it never asked for.

Cost: members that run nothing lie in a heap, the few that run something are scanned; a pick is O(log n + total).
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from messaging.message import Key
from messaging.policy import Policy
from messaging.virtualtime import Level, Member, Moved

FIRST_ESTIMATE = 1.0
"""Slot-seconds a start is charged before anything was measured."""

SMOOTHING = 0.1
"""Weight of the newest measurement in the running average that new starts are charged."""

LONG_MEMORY = 100
"""The longest job counts as recent until so many times its slot-seconds were used; it fades evenly."""

REACH = 2
"""So many of the longest recent jobs is the most that a member may be ahead of or behind its level when it starts."""


class Pick(NamedTuple):
    """A start: whose, and whether the slot is lent (beyond the sender's or its tenant's guarantee)."""

    key: Key
    lent: bool


class _Sender(Member):
    __slots__ = ("key", "starts")

    def __init__(self, key: Key, weight: float) -> None:
        super().__init__(weight)
        self.key = key
        # What each running job was charged in slot-seconds, and what that moved among the tenants and in its tenant.
        self.starts: deque[tuple[float, Moved, Moved]] = deque()


class _Tenant(Member):
    __slots__ = ("name", "senders")

    def __init__(self, name: str, weight: float) -> None:
        super().__init__(weight)
        self.name = name
        self.senders: Level[Key, _Sender] = Level()


class Fairness:
    """Owns the counts of one consumer process. One thread uses it; time never enters, only measured seconds."""

    def __init__(
        self,
        policy: Policy,
        *,
        weight_of: Callable[[Key], float] | None = None,
        tenant_weight_of: Callable[[str], float] | None = None,
    ) -> None:
        self.policy = policy
        self._weight_of = weight_of or (lambda _key: 1.0)
        self._tenant_weight_of = tenant_weight_of or (lambda _tenant: 1.0)
        self._tenants: Level[str, _Tenant] = Level()
        self._tickets = count(1)
        self._estimate = FIRST_ESTIMATE
        self._longest = FIRST_ESTIMATE
        self.total = policy.total
        self.running = 0
        self.waiting = 0

    @property
    def free_slots(self) -> int:
        """Slots nobody uses; 0 while more run than a shrunk total allows."""
        return max(0, self.total - self.running)

    def resize(self, total: int) -> None:
        """Change the slots of this process; running jobs keep theirs."""
        if total < 0:
            raise ValueError("total must not be negative")
        self.total = total

    def waiting_of(self, key: Key) -> int:
        """Jobs of this sender that are ready and not started."""
        sender = self._find(key)
        return sender.waiting if sender else 0

    def running_of(self, key: Key) -> int:
        """Slots this sender holds."""
        sender = self._find(key)
        return sender.running if sender else 0

    def counts(self, tenant: str) -> Iterator[tuple[Key, int, int]]:
        """A tenant's senders, each with its jobs that wait ready and that run. Not to be changed meanwhile."""
        found = self._tenants.members.get(tenant)
        for key, sender in found.senders.members.items() if found else ():
            if sender.active:
                yield key, sender.waiting, sender.running

    def add(self, key: Key, jobs: int = 1) -> None:
        """So many more jobs of this sender are ready."""
        tenant = self._tenants.members.get(key.tenant)
        if tenant is None:
            tenant = _Tenant(key.tenant, self._tenant_weight_of(key.tenant))
            tenant.virtual = self._tenants.virtual
            self._tenants.members[key.tenant] = tenant
        sender = tenant.senders.members.get(key)
        if sender is None:
            sender = tenant.senders.members[key] = _Sender(key, self._weight_of(key))
        if not tenant.waiting or (sender.running and not sender.waiting):
            self._count(tenant, sender, jobs, 0)
            return
        # Its tenant has its place already.
        if sender.waiting:
            sender.waiting += jobs
        else:
            tenant.senders.join(sender, jobs, next(self._tickets))
        tenant.waiting += jobs
        self.waiting += jobs

    def remove(self, key: Key, jobs: int = 1) -> None:
        """So many waiting jobs of this sender left without a start. Raises ValueError when it has fewer."""
        sender = self._find(key)
        if sender is None or sender.waiting < jobs:
            raise ValueError(f"{key} has fewer than {jobs} jobs waiting")
        self._count(self._tenants.members[key.tenant], sender, -jobs, 0)

    def pick(self) -> Pick | None:
        """Start the next job: the slot is taken and the sender charged an estimate. None: nobody may start now."""
        if self.running >= self.total or not self.waiting:
            return None
        choice, lent = self._choose(guaranteed=True), False
        if choice is None:
            choice, lent = self._choose(guaranteed=False), True
        if choice is None:
            return None
        tenant, sender = choice
        estimate, reach, turn = self._estimate, REACH * self._longest, next(self._tickets)
        among_tenants = self._tenants.start(tenant, estimate, reach, turn)
        sender.starts.append((estimate, among_tenants, tenant.senders.start(sender, estimate, reach, turn)))
        self.waiting -= 1
        self.running += 1
        return tuple.__new__(Pick, (sender.key, lent))  # what Pick(…) does, without the call in between

    def finished(self, key: Key, slot_seconds: float | None) -> None:
        """A start is over: its slot is free, its charge becomes what it took. None: nothing is charged.

        Raises ValueError when the sender runs nothing.
        """
        sender = self._find(key)
        if sender is None or not sender.running:
            raise ValueError(f"{key} has nothing running")
        tenant = self._tenants.members[key.tenant]
        estimate, among_tenants, in_tenant = sender.starts.popleft()
        if slot_seconds is None:
            self._tenants.undo(tenant, among_tenants)
            tenant.senders.undo(sender, in_tenant)
        else:
            used = slot_seconds if slot_seconds > 0.0 else 0.0
            self._tenants.charge(tenant, used - estimate)
            tenant.senders.charge(sender, used - estimate)
            self._estimate += SMOOTHING * (used - self._estimate)
            longest = self._longest - used / LONG_MEMORY
            self._longest = used if used > longest else longest
        tenant.senders.end(key, sender, self._tickets)
        self._tenants.end(key.tenant, tenant, self._tickets)
        self.running -= 1

    def _choose(self, *, guaranteed: bool) -> tuple[_Tenant, _Sender] | None:
        first = self._tenants.unrivalled()
        if first is not None and (one := first.senders.unrivalled()) is not None:
            return first, one
        capped = guaranteed or not self.policy.lend

        def sender_fits(sender: _Sender) -> bool:
            return not capped or sender.running < self.policy.per_key

        def tenant_fits(tenant: _Tenant) -> bool:
            if guaranteed and tenant.running >= self._share(tenant):
                return False
            return tenant.senders.serves(sender_fits)

        tenant = self._tenants.choose(tenant_fits)
        if tenant is None:
            return None
        sender = tenant.senders.choose(sender_fits)
        assert sender is not None  # a tenant that fits has one, and so has one that waits and runs nothing
        return tenant, sender

    def _share(self, tenant: _Tenant) -> int:
        # The small term keeps 10 x (1/10) from being rounded down to 0.
        return max(1, int(self.total * tenant.weight / self._tenants.weights + 1e-9))

    def _count(self, tenant: _Tenant, sender: _Sender, waiting: int, running: int) -> None:
        tenant.senders.count(sender.key, sender, waiting, running, self._tickets)
        self._tenants.count(tenant.name, tenant, waiting, running, self._tickets)
        self.waiting += waiting
        self.running += running

    def _find(self, key: Key) -> _Sender | None:
        tenant = self._tenants.members.get(key.tenant)
        return tenant.senders.members.get(key) if tenant else None
