"""What Kafka's client has handed over is either worked on or handed over again: nothing is dropped on the way.

Faust tells the client which partitions to fetch by a set that it goes on changing, and the client takes an empty one
for all of them. At the end of a recovery it is empty for a moment; a fetch that is under way then brings what nobody
asked for, which is thrown away. Faust goes back to what is committed after that, but only where something is: of a
partition that begins, events were left out without a word until the next one came. Written against the insides of
faust-streaming 0.15.3 and aiokafka 0.14.0.
"""

from collections.abc import Mapping
from typing import Any

import aiokafka
from faust.transport.drivers import aiokafka as driver
from faust.types import TP


class Thread(driver.AIOKafkaConsumerThread):
    """Where the Kafka client runs."""

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> Mapping[TP, list[Any]]:
        asked = active_partitions.copy()
        if not asked:
            return {}
        found: Mapping[TP, list[Any]] = await super()._fetch_records(consumer, asked, timeout, max_records)
        return found

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek to the committed offsets, and where there is none to the beginning."""
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_committed)
        return committed

    async def _seek_to_committed(self) -> Mapping[TP, int]:
        consumer = self._ensure_consumer()
        committed: Mapping[TP, int] = await consumer.seek_to_committed()
        # Asked for anew: some may have been taken away meanwhile.
        assigned = consumer.assignment()
        for place, offset in committed.items():
            # Of the tables' own topics nothing is committed; how far they are read is the recovery's to say.
            if not offset and place in assigned and not self.consumer._is_changelog_tp(place):
                # Where 0 is not kept any more the client goes on at the first that is, as `app.py` tells it.
                consumer.seek(place, 0)
        return committed
