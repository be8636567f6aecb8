"""Senders who were erased: their counts are taken out of the tables, and what they did before is counted no more."""

import asyncio
from functools import partial

import structlog

from messaging.erasure import digest
from messaging.message import Key
from services.analytics import counting, store
from services.analytics.counting import Fact
from services.analytics.cube import Cube
from services.analytics.lease import Lease
from services.analytics.tables import Counts

log = structlog.get_logger(__name__)

AT_ONCE = 500
"""Keys whose end on Kafka is awaited together."""


class Erasing:
    """Does what `erasure` asks for. All calls wait out an outage of the database and raise LostLease."""

    def __init__(self, lease: Lease, cube: Cube) -> None:
        self._lease = lease
        self._cube = cube
        self._marks: dict[bytes, float] = {}
        self.turn = asyncio.Lock()
        """Held while events are counted, and while counts are taken out: a batch under way must not put them back."""

    async def load(self) -> None:
        """Learn who was erased, and when."""
        self._marks = await self._lease.run(store.erased)

    def covers(self, fact: Fact) -> bool:
        """Whether it happened before its sender was erased."""
        if not self._marks:
            return False
        mark = self._marks.get(digest(Key(fact.tenant, fact.sender)))
        return mark is not None and fact.at <= mark

    async def run(self, table: Counts) -> None:
        """Take out all that was asked for by now, from this disk, from Kafka and from the cube."""
        asked = await self._lease.run(store.asked_to_erase)
        if not asked:
            return
        # After that: whoever asks has said before that the sender is erased.
        await self.load()
        async with self.turn:
            keys = await self._take_out(table, {one.owner for one in asked})
        for one in asked:
            await self._lease.run(partial(store.note_erased, asked=one, keys=keys[one.owner]))
        log.info("analytics.erased", senders=len(asked), keys=sum(keys.values()))

    async def _take_out(self, table: Counts, owners: set[bytes]) -> dict[bytes, int]:
        keys = dict.fromkeys(owners, 0)
        sent: list[asyncio.Future[object]] = []
        async for key, _ in table.everything():
            owner = counting.owner(key)
            if owner is None or (name := digest(owner)) not in keys or (before := table.look(key)) is None:
                continue
            sent.append(table.write(key, None))
            self._cube.apply(key, before, None)
            keys[name] += 1
            if len(sent) == AT_ONCE:
                await on_kafka(sent)
        await on_kafka(sent)
        return keys


async def on_kafka(sent: "list[asyncio.Future[object]]") -> None:
    """Wait until Kafka has these writes, and forget them."""
    await asyncio.gather(*sent)
    sent.clear()
