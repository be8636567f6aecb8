"""How often each event in hand was begun: in the database before each try, and here, for the one who counts."""

from collections.abc import Mapping, Sequence

from messaging.database import Connection
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
        self._begun: dict[Place, Begun] = {}

    async def load(self) -> None:
        """Learn what is unsettled. Those events are suspects: something may have died of one of them."""
        owed, self._owed = self._owed, []

        async def work(conn: Connection) -> Mapping[Place, Begun]:
            if owed:
                await store.give_back(conn, owed)
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
        await self._lease.run(lambda conn: store.begin(conn, places))
        for place in places:
            self._begun[place] = Begun(self.of(place).tries + 1)

    async def give_back(self, places: Sequence[Place]) -> None:
        """Undo the last try of each."""
        await self._lease.run(lambda conn: store.give_back(conn, places))
        for place in places:
            self._begun[place] = Begun(max(0, self.of(place).tries - 1))

    def owe(self, places: Sequence[Place]) -> None:
        """The same, with the next `load`: for when there is no time now."""
        self._owed += [place for place in places if place in self._begun]

    async def note(self, place: Place, reason: str, error: str) -> None:
        """Why its last try failed, for the dead letter that may have to be written in another life."""
        await self._lease.run(lambda conn: store.note(conn, place, reason, error))
        self._begun[place] = Begun(self.of(place).tries, reason, error)

    async def settle(self, places: Sequence[Place]) -> None:
        """They are counted or set aside."""
        if begun := [place for place in places if place in self._begun]:
            await self._lease.run(lambda conn: store.settle(conn, begun))
            for place in begun:
                del self._begun[place]


_NONE = Begun(0)
