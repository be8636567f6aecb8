"""The dead-letter projector: copies every dead-letter topic into the table, and never sets anything aside itself.

An ordinary member of its group. Rows are committed before offsets are, and a letter is stored once by its identity,
so a crash between the two repeats harmlessly. While Postgres is away it holds its batch and tries again; while Kafka
is away there is nothing to do.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from messaging import erasure, telemetry
from messaging.database import Connection, Pool, is_outage
from messaging.garbled import Garbled, checked
from messaging.message import Key, header_pairs
from messaging.poller import consumer_config
from schemas.topics import DeadLetterTopic
from services.gateway import letters
from services.gateway.store import worker as store

log = structlog.get_logger(__name__)

BATCH = 500
QUEUED_KILOBYTES = 8192
"""What the client reads ahead, and so about the most that is in memory at once."""

IDLE_SECONDS = 0.25
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 5.0


class Projector:
    """One process's share of the dead-letter topics. Start it on the loop that uses the pool."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[DeadLetterTopic], pool: Pool) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._config = consumer_config(bootstrap, group, group) | {
            "queued.max.messages.kbytes": QUEUED_KILOBYTES,
            "error_cb": self._noted,
        }
        self._pool = pool
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Project from now on."""
        self._task = asyncio.create_task(self._run(), name="projector")
        self._task.add_done_callback(_raise)

    async def stop(self) -> None:
        """Finish the batch in hand and leave the group; a batch that cannot be stored is left to the next start."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def started(self) -> bool:
        """Whether it has begun."""
        return self._task is not None

    def healthy(self) -> bool:
        """Whether it runs, or has not begun."""
        return self._task is None or not self._task.done()

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            consumer = Consumer(self._config)
            consumer.subscribe(list(self._topics))
            try:
                await self._follow(consumer)
            except KafkaException as error:
                # The client is of no more use (fenced for good, or worse): another one takes its place.
                telemetry.PROJECTOR_OUTAGES.labels("kafka").inc()
                log.error("projector.client_failed", error=error.args[0].str())
            finally:
                await asyncio.to_thread(consumer.close)
            await self._wait(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _follow(self, consumer: Consumer) -> None:
        # All calls into the client are awaited one after the other: it is never used by two threads at once.
        while not self._stopping.is_set():
            records = await asyncio.to_thread(_poll, consumer)
            for error in (record.error() for record in records):
                if error is not None:
                    self._noted(error)
            good = [record for record in records if record.error() is None]
            if good and await self._store(good):
                await asyncio.to_thread(_commit, consumer, good)

    async def _store(self, records: Sequence[Message]) -> bool:
        """False: stopped before the database was back."""
        now = datetime.now(UTC)
        found = [self._read(record, now) for record in records]
        pause = FIRST_PAUSE
        while True:
            try:
                async with self._pool.connection() as conn:
                    added = await _add(conn, found)
                break
            except psycopg.Error as error:
                if not is_outage(error):
                    raise
                telemetry.PROJECTOR_OUTAGES.labels("database").inc()
                log.warning("projector.database_away", letters=len(found), error=str(error))
            await self._wait(pause)
            if self._stopping.is_set():
                return False
            pause = min(LONGEST_PAUSE, pause * 2)
        telemetry.LETTERS_STORED.inc(added)
        log.info("letters.stored", read=len(found), new=added)
        return True

    def _read(self, record: Message, now: datetime) -> letters.Letter:
        topic = self._topics[str(record.topic())]
        safe = checked(record)
        headers = None if isinstance(safe, Garbled) else header_pairs(safe.headers())
        return letters.read(safe, headers, topic.source, topic.consumer, now)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _noted(self, error: KafkaError) -> None:
        """An error the client reports: fatal ones end its use, it recovers from the others by itself."""
        if error.fatal():
            raise KafkaException(error)
        telemetry.PROJECTOR_OUTAGES.labels("kafka").inc()
        log.warning("projector.kafka_error", error=error.str())


async def _add(conn: Connection, found: Sequence[letters.Letter]) -> int:
    """Store them; of a sender who was erased, without what is theirs."""
    owners = {Key(letter.tenant, letter.owner) for letter in found if letter.tenant and letter.owner}
    marks = await erasure.when(conn, owners)
    added = await store.add(conn, found)
    if gone := [letter for letter in found if letters.erased(letter, marks)]:
        log.info("letters.erased", count=await store.empty(conn, gone))
    return added


def _poll(consumer: Consumer) -> list[Message]:
    # consume() waits until its batch is full or the time is over, so one record is awaited and the rest taken.
    first = consumer.poll(IDLE_SECONDS)
    return [] if first is None else [first, *consumer.consume(BATCH - 1, 0)]


def _commit(consumer: Consumer, records: Sequence[Message]) -> None:
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        ends[str(record.topic()), int(record.partition() or 0)] = int(record.offset() or 0) + 1
    places = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
    try:
        consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as error:
        # The rows are safe: whoever reads these records again finds them stored.
        log.warning("projector.not_committed", error=error.args[0].str())


def _raise(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
