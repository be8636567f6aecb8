"""How often each event in hand was begun: in the database before each try, and here, for the one who counts."""

import asyncio
from collections.abc import Mapping, Sequence

from aiokafka.errors import KafkaError, KafkaTimeoutError

from messaging.database import Connection
from messaging.errors import MessagingError
from services.analytics import store
from services.analytics.counting import Place
from services.analytics.lease import Lease
from services.analytics.store import Begun


class Tries:
    """The tries of one process's life and of what the one before it left unsettled.

    Every call waits out an outage of the database and raises LostLease when another process counts by then.
    """

    def __init__(self, lease: Lease, topics: Sequence[str]) -> None:
        self._lease = lease
        self._topics = list(topics)
        self._owed: list[Place] = []
        self._open: set[Place] = set()
        self._begun: dict[Place, Begun] = {}

    async def load(self) -> None:
        """Learn what is unsettled. Those events are suspects: something may have died of one of them."""
        await self.pay()

        async def work(conn: Connection) -> Mapping[Place, Begun]:
            return await store.unsettled(conn, self._topics)

        self._begun = dict(await self._lease.run(work))

    def of(self, place: Place) -> Begun:
        """What is known of an event's tries."""
        return self._begun.get(place, _NONE)

    def suspect(self, place: Place) -> bool:
        """Whether a try of it was begun that has no outcome yet, or a bad one: it is tried alone."""
        return place in self._begun

    async def begin(self, places: Sequence[Place]) -> None:
        """One more try of each; when this returns, a crash cannot undo it."""
        once = list(dict.fromkeys(places))
        # Before the statement: one that is under way when we are cancelled is ended all the same.
        self._open.update(once)
        await self._lease.run(lambda conn: store.begin(conn, once))
        for place in once:
            self._begun[place] = Begun(self.of(place).tries + 1)

    async def give_back(self, places: Sequence[Place]) -> None:
        """Undo the last try of each."""
        self._open.difference_update(places)
        await self._lease.run(lambda conn: store.give_back(conn, places))
        for place in places:
            self._begun[place] = Begun(max(0, self.of(place).tries - 1))

    def owe(self) -> None:
        """The tries that have no outcome, good or bad, were broken off by no fault of theirs: `pay` undoes them."""
        self._owed += self._open
        self._open.clear()

    def charge(self) -> None:
        """The tries that have no outcome may themselves have ended the loop: they stay charged."""
        self._open.clear()

    async def pay(self) -> None:
        """Undo the tries that are owed."""
        owed, self._owed = self._owed, []
        if owed:
            await self._lease.run(lambda conn: store.give_back(conn, owed))

    async def note(self, place: Place, reason: str, error: str) -> None:
        """Why its last try failed, for the dead letter that may have to be written in another life."""
        self._open.discard(place)
        await self._lease.run(lambda conn: store.note(conn, place, reason, error))
        self._begun[place] = Begun(self.of(place).tries, reason, error)

    async def settle(self, places: Sequence[Place]) -> None:
        """They are counted or set aside."""
        if begun := [place for place in dict.fromkeys(places) if place in self._begun]:
            self._open.difference_update(begun)
            await self._lease.run(lambda conn: store.settle(conn, begun))
            for place in begun:
                del self._begun[place]


_NONE = Begun(0)


def blameless(end: BaseException) -> bool:
    """Whether the loop ended for something that no event can be at fault for. Else the tries stay charged, lest an
    event that cannot be written ends the process for ever."""
    if isinstance(end, KafkaError):
        return bool(end.retriable) or isinstance(end, KafkaTimeoutError)
    return isinstance(end, asyncio.CancelledError | MessagingError)
