"""Pure: what waits and what runs of one tenant in one process, sender by sender, for people to look at."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from messaging.message import Key

MOST_SENDERS = 1000
"""Senders that are named, those with the most first; the rest is in the totals."""


@dataclass(slots=True)
class SenderQueue:
    """One sender's jobs: ready; on a slot; known by their offset only; waiting for a time of their own."""

    sender: str
    waiting: int = 0
    running: int = 0
    parked: int = 0
    delayed: int = 0

    @property
    def jobs(self) -> int:
        """All of them."""
        return self.waiting + self.running + self.parked + self.delayed


@dataclass(frozen=True, slots=True)
class Queue:
    """One consumer in one process. The totals are the tenant's, slots and holders everybody's.

    slots, in_use   of this process
    held_by         what keeps everything from starting: an outage, a provider that says "wait"
    senders         the tenant's with the most jobs first; `left_out` more are in the totals only
    """

    consumer: str
    slots: int
    in_use: int
    held_by: list[str]
    waiting: int
    running: int
    parked: int
    delayed: int
    senders: list[SenderQueue]
    left_out: int


class Tally:
    """Counts jobs by sender, of one tenant; those of others are passed over."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._senders: dict[str, SenderQueue] = {}

    def add(self, key: Key, *, waiting: int = 0, running: int = 0, parked: int = 0, delayed: int = 0) -> None:
        """So many more jobs of this key."""
        if key.tenant != self._tenant:
            return
        queue = self._senders.get(key.sender)
        if queue is None:
            queue = self._senders[key.sender] = SenderQueue(key.sender)
        queue.waiting += waiting
        queue.running += running
        queue.parked += parked
        queue.delayed += delayed

    def queue(self, consumer: str, *, slots: int, in_use: int, held_by: Iterable[str]) -> Queue:
        """The picture that was counted."""
        senders = [queue for queue in self._senders.values() if queue.jobs]
        named = heapq.nlargest(MOST_SENDERS, senders, key=lambda queue: queue.jobs)
        return Queue(
            consumer=consumer,
            slots=slots,
            in_use=in_use,
            held_by=list(held_by),
            waiting=sum(queue.waiting for queue in senders),
            running=sum(queue.running for queue in senders),
            parked=sum(queue.parked for queue in senders),
            delayed=sum(queue.delayed for queue in senders),
            senders=named,
            left_out=len(senders) - len(named),
        )
