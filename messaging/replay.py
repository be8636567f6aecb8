"""One place in one partition, to read single records again: a groupless consumer that reads on from where it is.

What a sender wants next mostly lies just ahead of what it wanted last, and is fetched already. Only another
partition, a step back or a long way ahead is a new beginning, for which the broker is asked for the bounds.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from messaging.kept import Kept

PATIENCE_SECONDS = 5.0
"""Without a record for this long, the partition's bounds are asked again: what was wanted may have been deleted."""

SKIP = 5000
"""Seek when the next wanted record is further ahead than this many; nearer, reading on is cheaper than a fetch."""

BATCH = 500


class Replay:
    """Not for several threads. `stopping` ends a read early."""

    def __init__(self, config: dict[str, str | int | bool], stopping: threading.Event) -> None:
        self._consumer = Consumer(config)
        self._stopping = stopping
        self._position = 0  # the next offset it gives, at the lowest
        self._passed = Passed()
        self.place: tuple[str, int] | None = None
        """The topic and partition it is at."""

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def read(self, place: tuple[str, int], offsets: Sequence[int]) -> dict[int, Kept]:
        """The records at these ascending offsets, without those that do not exist any more. Raises KafkaException."""
        try:
            # Here, where they were just read, they are cheap to take apart.
            return {offset: Kept(record) for offset, record in self._read(place, offsets).items()}
        except BaseException:
            self.place = None
            raise

    def _read(self, place: tuple[str, int], offsets: Sequence[int]) -> dict[int, Message]:
        found = self._passed.take(offsets) if self.place == place else {}
        wanted = deque(offset for offset in offsets if offset not in found)
        if self.place != place or (wanted and not 0 <= wanted[0] - self._position <= SKIP):
            self._begin(place, wanted)
        self._read_on(place, wanted, found)
        if len(found) < len(offsets):
            # What was passed over is given up, for ever, only when a new beginning does not find it either.
            wanted = deque(offset for offset in offsets if offset not in found)
            self._begin(place, wanted)
            self._read_on(place, wanted, found)
        return found

    def _begin(self, place: tuple[str, int], wanted: deque[int]) -> None:
        """Go to the first wanted offset that exists, within the bounds that the broker tells; drop the others."""
        self.place, self._passed = None, Passed()
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=5.0)
        while wanted and wanted[0] < low:
            wanted.popleft()
        while wanted and wanted[-1] >= high:
            wanted.pop()
        if wanted:
            self._consumer.assign([TopicPartition(*place, wanted[0])])
            self.place, self._position = place, wanted[0]

    def _read_on(self, place: tuple[str, int], wanted: deque[int], found: dict[int, Message]) -> None:
        heard_at = time.monotonic()
        while wanted and not self._stopping.is_set():
            if wanted[0] - self._position > SKIP:
                self._position = wanted[0]
                self._consumer.seek(TopicPartition(*place, self._position))
            records = self._next_records(wanted[-1] - self._position + 1)
            if records:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > PATIENCE_SECONDS:
                self._begin(place, wanted)
                heard_at = time.monotonic()
            for record in records:
                self._take(record, wanted, found)

    def _next_records(self, most: int) -> list[Message]:
        # consume() waits until its batch is full or the time is over, so one record is awaited and the rest taken.
        first = self._consumer.poll(0.1)
        if first is None:
            return []
        return [first, *self._consumer.consume(min(most, BATCH) - 1, 0)] if most > 1 else [first]

    def _take(self, record: Message, wanted: deque[int], found: dict[int, Message]) -> None:
        error, offset = record.error(), record.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        assert offset is not None
        if offset < self._position:
            return
        # Records come in order: what was passed over does not exist any more.
        while wanted and wanted[0] < offset:
            wanted.popleft()
        self._position = offset
        if error is not None:
            return  # the end of the partition, for now
        self._position += 1
        if wanted and wanted[0] == offset:
            found[wanted.popleft()] = record
        else:
            self._passed.add(offset, record)


class Passed:
    """The records that were read over last: lanes are filled unevenly, and the next wish may reach back a little."""

    def __init__(self, records: int = 5000, size: int = 2 * 1024 * 1024) -> None:
        self._records: dict[int, Message] = {}
        self._most = records
        self._room = size

    def add(self, offset: int, record: Message) -> None:
        """Keep a record, and let the oldest go beyond the bounds: so many records, so many bytes of values."""
        self._records[offset] = record
        self._room -= len(record)
        while len(self._records) > self._most or (self._room < 0 and self._records):
            self._room += len(self._records.pop(next(iter(self._records))))

    def take(self, offsets: Sequence[int]) -> dict[int, Message]:
        """Those of these that are here; they are kept no longer."""
        found = {offset: self._records.pop(offset) for offset in offsets if offset in self._records}
        self._room += sum(map(len, found.values()))
        return found
