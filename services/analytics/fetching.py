"""What Kafka's client has handed over is either worked on or handed over again: nothing is dropped on the way.

Faust tells the client which partitions to fetch by a set that it goes on changing, and the client takes an empty one
for all of them. At the end of a recovery it is empty for a moment; a fetch that is under way then brings what nobody
asked for, which is thrown away. Faust goes back to what is committed after that, but only where something is: of a
partition that begins, events were left out without a word until the next one came. Written against the insides of
faust-streaming 0.15.3 and aiokafka 0.14.0.
"""

from collections.abc import Collection, Mapping
from typing import Any

import aiokafka
from faust.transport.drivers import aiokafka as driver
from faust.types import TP


class Thread(driver.AIOKafkaConsumerThread):
    """Where the Kafka client runs."""

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: Collection[TP],
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> Mapping[TP, list[Any]]:
        asked = set(active_partitions)
        if not asked:
            return {}
        found: Mapping[TP, list[Any]] = await super()._fetch_records(consumer, asked, timeout, max_records)
        return found

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek all partitions to their committed offsets; those that have none to their beginning."""
        committed: Mapping[TP, int] = await super().seek_to_committed()
        await self.call_thread(self._to_the_beginning, [place for place, offset in committed.items() if not offset])
        return committed

    async def _to_the_beginning(self, places: Collection[TP]) -> None:
        consumer = self._ensure_consumer()
        # Of the tables' own topics nothing is committed; how far they are read is the recovery's to say.
        for place in consumer.assignment().intersection(places):
            if not self.consumer._is_changelog_tp(place):
                # Where 0 is not kept any more, the client goes on at what is.
                consumer.seek(place, 0)
