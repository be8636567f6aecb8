"""The agent's loop: every event is counted or set aside, and acknowledged only when Kafka has that.

The order keeps the promise across a crash at any point: the try is in the database, then the event is counted on this
disk, its changelog on Kafka is confirmed (or its dead letter is), then the try is settled, then it is acknowledged.
Repeats are harmless: what was counted holds the offset it was counted at.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import structlog

from messaging import retry, telemetry
from messaging.breaker import Fuse
from messaging.codec import Codec
from messaging.deadletter import FIRST_HOP, Hop, dead_headers
from messaging.errors import LostAttempts, MessagingError, Outage, Undecodable, UnknownEvent
from messaging.judge import FUSE
from messaging.message import TIME, header_text
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from messaging.runs import classify
from services.analytics import counting
from services.analytics.counting import Fact, Keep, Tally
from services.analytics.cube import Cube
from services.analytics.erasing import Erasing
from services.analytics.gaps import Gaps
from services.analytics.record import NOBODY, Record
from services.analytics.tables import Counts
from services.analytics.tries import Tries

log = structlog.get_logger(__name__)

BATCH = 200
"""Events settled at once: begun in one statement, and their changelog records awaited together."""

FIRST_PAUSE = 0.25
_EXEMPT = (Undecodable, UnknownEvent, LostAttempts)


class Counting:
    """Counts the events of these subscriptions. `open` gives it the table of the running app."""

    def __init__(
        self,
        subscriptions: Sequence[Subscription],
        codec: Codec,
        readers: frozenset[type[Any]],
        tries: Tries,
        producer: ConfirmedProducer,
        erasing: Erasing,
        cube: Cube,
        keep: Keep,
    ) -> None:
        self._of_topic = {
            topic: subscription
            for subscription in subscriptions
            for topic in (subscription.topic, subscription.retry_topic)
        }
        self._fuses = {sub.name: Fuse(sub.dead_letter_share) for sub in subscriptions}
        self._codec = codec
        self._readers = readers
        self._tries = tries
        self._erasing = erasing
        self._producer = producer
        self._cube = cube
        self._keep = keep
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret

    def open(self, table: Counts, gaps: Gaps) -> None:
        """Count into this table from now on."""
        self._table = table
        self._gaps = gaps

    async def run(self, stream: Any) -> None:
        """Take what the stream gives, for as long as it gives. Faust cancels this at every rebalance and starts it
        anew; an error ends the app, for a loop that was left with an event open would be committed over.
        """
        self._gaps.reset()
        await self._tries.load()
        await self._erasing.load()
        batch: list[Record] = []
        try:
            async for event in stream.noack().events():
                batch.append(Record(event))
                if len(batch) >= BATCH or stream.channel.queue.empty():
                    async with self._erasing.turn:
                        await self._settle(batch)
                    batch.clear()
        except asyncio.CancelledError:
            self._tries.owe([record.place for record in batch])
            raise

    async def _settle(self, batch: Sequence[Record]) -> None:
        """All of them, in order. Those that something may have died of go alone, lest their neighbours be charged."""
        for record in batch:
            await self._gaps.watch(record.place)
        rest = list(batch)
        while rest:
            fresh = next((n for n, record in enumerate(rest) if self._tries.suspect(record.place)), len(rest))
            together, rest = rest[: max(1, fresh)], rest[max(1, fresh) :]
            tally = Tally(self._table.look, self._keep)
            if fresh:
                await self._tries.begin([record.place for record in together])
            elif self._spent(together[0]):
                await self._bury(together[0], tally)
                await self._close(together, tally)
                continue
            else:
                await self._tries.begin([together[0].place])
            for record in together:
                await self._one(record, tally)
            await self._close(together, tally)

    async def _close(self, records: Sequence[Record], tally: Tally) -> None:
        await self._write(tally)
        await self._tries.settle([record.place for record in records])
        for record in records:
            record.ack()

    async def _one(self, record: Record, tally: Tally) -> None:
        """Count it, or set it aside. It was begun."""
        sub = self._of_topic[record.place.topic]
        pause = FIRST_PAUSE
        while True:
            try:
                fact = await self._read(record)
                if self._erasing.covers(fact):
                    tally.settled(record.place)
                    return
                fresh = tally.add(record.place, fact, time.time())
            except Exception as fault:
                error = classify(fault)
            else:
                self._fuses[sub.name].passed()
                (telemetry.EVENTS_COUNTED if fresh else telemetry.EVENTS_REPEATED).labels(sub.name).inc()
                return
            tries = self._tries.of(record.place).tries
            decision = self._decide(record, sub, error, tries)
            match decision:
                case retry.SetAside(reason=reason, message=message):
                    await self._set_aside(record, sub, reason, message, tries)
                    tally.settled(record.place)
                    return
                case retry.RetryIn(seconds=seconds):
                    telemetry.RETRIES.labels(sub.name, type(error).__name__).inc()
                    await self._tries.note(record.place, retry.EXHAUSTED, retry.describe(error))
                case retry.Pause(resource=resource, longest=longest):
                    log.warning("analytics.paused", resource=resource, error=str(error))
                    await self._tries.give_back([record.place])
                    seconds, pause = pause, min(longest, pause * 2)
                case retry.Wait(seconds=seconds) | retry.Later(seconds=seconds):
                    await self._tries.give_back([record.place])
            await self._write(tally)
            telemetry.CONSUMER_PAUSED.labels(sub.name).set(not isinstance(decision, retry.RetryIn))
            await asyncio.sleep(seconds)
            telemetry.CONSUMER_PAUSED.labels(sub.name).set(0)
            await self._tries.begin([record.place])

    async def _read(self, record: Record) -> Fact:
        if record.owner is NOBODY:
            raise Undecodable("The record's key is not <tenant>:<sender>, so nobody can be asked about it.")
        event = self._codec.decode_known(record.headers, record.value, self._readers)
        if event is None:
            event = await self._codec.decode(record.headers, record.value, self._readers)
        return counting.fact(event, counting.happened(header_text(record.headers, TIME), record.stored_at))

    def _decide(self, record: Record, sub: Subscription, error: MessagingError, tries: int) -> retry.Decision:
        decision = retry.decide(error, tries, sub.backoff, self._rng)
        if isinstance(decision, retry.SetAside) and not isinstance(error, _EXEMPT):
            fuse, now = self._fuses[sub.name], time.monotonic()
            if fuse.holds(decision.reason, record.owner, str(record.place), now):
                return retry.Pause(FUSE)
        return decision

    def _spent(self, record: Record) -> bool:
        return self._tries.of(record.place).tries >= self._of_topic[record.place.topic].backoff.attempts

    async def _bury(self, record: Record, tally: Tally) -> None:
        """An event that has had all its tries, the last of them in a process that is no more."""
        sub = self._of_topic[record.place.topic]
        tries, reason, error = self._tries.of(record.place)
        if reason is None or error is None:
            lost = LostAttempts(f"It was begun {tries} times, and each time its process died.")
            reason, error = lost.reason, str(lost)
        await self._set_aside(record, sub, reason, error, tries)
        tally.settled(record.place)

    async def _set_aside(self, record: Record, sub: Subscription, reason: str, message: str, tries: int) -> None:
        """Returns once Kafka has the dead letter, however long it is away."""
        # Our own headers count only on a retry topic.
        hop = Hop(record.raw_headers) if record.place.topic == sub.retry_topic else FIRST_HOP
        headers = dead_headers(
            record.raw_headers,
            origin=hop.origin or "/".join(map(str, record.place)),
            consumer=sub.consumer,
            reason=reason,
            error=message,
            attempts=tries,
            generation=hop.generation,
        )
        await self._tries.note(record.place, reason, message)
        while True:
            try:
                await self._producer.send(sub.dead_letter_topic, record.key, record.value, headers)
                break
            except Outage as error:
                log.warning("analytics.letter_waits", error=str(error))
            await asyncio.sleep(FIRST_PAUSE)
        telemetry.DEAD_LETTERS.labels(sub.name, reason).inc()
        log.info("event.dead", consumer=sub.name, place="/".join(map(str, record.place)), reason=reason, tries=tries)

    async def _write(self, tally: Tally) -> None:
        """What was counted goes to this disk and to Kafka; returns when both have it."""
        sent = []
        for key, value in tally.take():
            before = self._table.look(key)
            sent.append(self._table.write(key, value))
            self._cube.apply(key, before, value)
        await asyncio.gather(*sent)
