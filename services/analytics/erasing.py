"""Senders who were erased: their counts are taken out of the tables, and what they did before is counted no more.

All of a sender's counts go, for a sum does not say which of it is from before the moment up to which they are erased.
So they must go before anything from after it is counted. The counts are asked for LEAD before the moment comes: what
happened no later than LEAD after this process last looked cannot be from after a moment that it does not know. Before
it counts anything later it looks again.

Taking out means going through the whole table. Counting goes on meanwhile: of those whose counts go nothing is
counted, as what is from before the moment is left out, and what is from after it waits. It is noted as done when all
of it is: whoever is ended before that goes through the table again.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

import structlog

from messaging.erasure import LEAD, digest
from messaging.message import Key
from services.analytics import counting, store
from services.analytics.counting import Fact, Value
from services.analytics.cube import Cube
from services.analytics.lease import Lease
from services.analytics.record import Record
from services.analytics.removing import take_out
from services.analytics.store import Asked
from services.analytics.tables import Counts

log = structlog.get_logger(__name__)


class Erasing:
    """Does what `erasure` asks for. All calls wait out an outage of the database and raise LostLease."""

    def __init__(self, lease: Lease, cube: Cube) -> None:
        self._lease = lease
        self._cube = cube
        self._marks: dict[bytes, float] = {}
        self._going: dict[bytes, Asked] = {}
        self._foreseen = 0.0
        self._looking = asyncio.Lock()
        self._taking_out = asyncio.Lock()
        self.turn = asyncio.Lock()
        """Held while events are counted. Counts are not taken out before the batch under way has ended, which may
        know less: it would put them back."""

    async def load(self) -> None:
        """Learn who was erased, and when."""
        self._marks = await self._lease.run(store.erased)

    def covers(self, fact: Fact) -> bool:
        """Whether it happened before its sender was erased."""
        if not self._marks:
            return False
        mark = self._marks.get(digest(Key(fact.tenant, fact.sender)))
        return mark is not None and fact.at <= mark

    async def foresee(self, table: Counts, records: Sequence[Record]) -> None:
        """Returns when these can be counted by what is known: looks again if they are later than that, and waits for
        the counts of their senders to go that must go before. Not in `turn`."""
        if max(record.happened for record in records) > self._foreseen:
            await self._look()
        while any(self._early(record) for record in records):
            await self.run(table)

    async def run(self, table: Counts) -> None:
        """Take out all that was asked for by now, from Kafka, from this disk and from the cube."""
        async with self._taking_out:
            await self._look()
            asked = list(self._going.values())
            if not asked:
                return
            async with self.turn:
                pass
            log.info("analytics.erases", senders=len(asked))
            keys = await self._take_out(table, {one.owner for one in asked})
            async with self._looking:
                # Before anything of theirs is counted again: after a crash between, that would be taken out as well.
                for one in asked:
                    await self._lease.run(partial(store.note_erased, asked=one, keys=keys[one.owner]))
                self._going = {owner: one for owner, one in self._going.items() if one not in asked}
            log.info("analytics.erased", senders=len(asked), keys=keys.total())

    async def _look(self) -> None:
        async with self._looking:
            asked, looked_at = await self._lease.run(store.asked_to_erase)
            if asked:
                # Who asks has marked before.
                await self.load()
            self._going = {one.owner: one for one in asked}
            self._foreseen = looked_at + LEAD.total_seconds()

    def _early(self, record: Record) -> bool:
        if not self._going:
            return False
        owner = digest(record.owner)
        if owner not in self._going:
            return False
        # Marks go with time. Without one nothing says what would be left out, so all of theirs waits.
        mark = self._marks.get(owner)
        return mark is None or record.happened > mark

    async def _take_out(self, table: Counts, owners: set[bytes]) -> Counter[bytes]:
        def whose(key: str, value: Value) -> bytes | None:
            owner = counting.owner(key)
            return name if owner is not None and (name := digest(owner)) in owners else None

        return await take_out(table, self._cube, whose)
