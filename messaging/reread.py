"""Read parked records again: a second, groupless consumer that goes over the span of the wanted offsets once."""

import asyncio
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import structlog
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 5.0
"""Without a record for this long, the partition's bounds are asked again: what was wanted may have been deleted."""

SKIP = 5000
"""Seek when the next wanted record is further ahead than this many; nearer, reading on is cheaper than a fetch."""


class Rereader:
    """Fetches single offsets of a partition, in ascending order, on a thread of its own."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._config: dict[str, str | int | bool] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            # Required by the client, used for nothing: this consumer only assigns.
            "group.id": f"{client_id}-unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 2000,
            "queued.max.messages.kbytes": 16384,
            "fetch.wait.max.ms": 20,
            "log_level": 3,
        }
        self._work: SimpleQueue[_Wish | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._thread.start()

    async def fetch(self, topic: str, partition: int, offsets: Sequence[int]) -> dict[int, Message]:
        """The records at these ascending offsets. One that is missing in the answer does not exist any more."""
        wish = _Wish(topic, partition, offsets, self._loop.create_future())
        self._work.put(wish)
        return await wish.answer

    async def close(self) -> None:
        """Stop the thread; wishes under way are cancelled."""
        self._stopping.set()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join, 5.0)

    def _run(self) -> None:
        consumer = Consumer(self._config)
        try:
            while (wish := self._work.get()) is not None:
                try:
                    found = self._read(consumer, wish)
                except KafkaException as error:
                    log.warning("reread.failed", topic=wish.topic, partition=wish.partition, error=str(error))
                    self._work.put(wish)
                    self._stopping.wait(0.5)
                except Exception as error:
                    # The event loop raises it: a fault of ours ends the process rather than this thread in silence.
                    self._loop.call_soon_threadsafe(_fail, wish.answer, error)
                else:
                    self._loop.call_soon_threadsafe(_answer, wish.answer, found)
                if self._stopping.is_set():
                    return
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, wish: "_Wish") -> dict[int, Message]:
        place = TopicPartition(wish.topic, wish.partition, wish.offsets[0])
        low, high = consumer.get_watermark_offsets(place, timeout=5.0)
        found: dict[int, Message] = {}
        remaining = [offset for offset in wish.offsets if low <= offset < high]
        if not remaining:
            return found
        consumer.assign([TopicPartition(wish.topic, wish.partition, remaining[0])])
        index = 0
        position = remaining[0]
        heard_at = time.monotonic()
        while index < len(remaining) and not self._stopping.is_set():
            if remaining[index] - position > SKIP:
                position = remaining[index]
                consumer.seek(TopicPartition(wish.topic, wish.partition, position))
            records = consumer.consume(500, 0.1)
            if records:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > PATIENCE_SECONDS:
                low, _high = consumer.get_watermark_offsets(place, timeout=5.0)
                while index < len(remaining) and remaining[index] < low:
                    index += 1
                heard_at = time.monotonic()
            for record in records:
                error = record.error()
                if error is not None:
                    raise KafkaException(error)
                offset = record.offset()
                assert offset is not None
                if offset < position:
                    continue
                position = offset + 1
                while index < len(remaining) and remaining[index] < offset:
                    index += 1
                if index < len(remaining) and remaining[index] == offset:
                    found[offset] = record
                    index += 1
        consumer.unassign()
        return found


class _Wish:
    __slots__ = ("answer", "offsets", "partition", "topic")

    def __init__(
        self, topic: str, partition: int, offsets: Sequence[int], answer: "asyncio.Future[dict[int, Message]]"
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offsets = offsets
        self.answer = answer


def _fail(answer: "asyncio.Future[dict[int, Message]]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _answer(answer: "asyncio.Future[dict[int, Message]]", found: dict[int, Message]) -> None:
    if not answer.done():
        answer.set_result(found)
