"""The agent's loop: every event is counted or set aside, and acknowledged only when Kafka has that.

The order keeps the promise across a crash at any point: the try is in the database, then the event is counted on this
disk, its changelog on Kafka is confirmed (or its dead letter is), then the try is settled, then it is acknowledged.
Repeats are harmless: what was counted holds the offset it was counted at.

Faust goes on with the same loop through a rebalance, and gives what is not acknowledged again after it.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import structlog

from messaging import retry, telemetry
from messaging.codec import Codec
from messaging.errors import LostAttempts, MessagingError, NotRetryable, Undecodable
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from messaging.runs import classify
from services.analytics import counting
from services.analytics.counting import Fact, Keep, Outcome, Place, Tally
from services.analytics.cube import Cube
from services.analytics.erasing import Erasing
from services.analytics.gaps import Gaps
from services.analytics.holding import Holding
from services.analytics.letters import Letters
from services.analytics.record import NOBODY, Record
from services.analytics.tables import Counts
from services.analytics.tries import Tries, blameless

log = structlog.get_logger(__name__)

BATCH = 200
"""Events settled at once: begun in one statement, and their changelog records awaited together."""

FIRST_PAUSE = 0.25
PAY_SECONDS = 3.0
_METERS = {
    Outcome.COUNTED: telemetry.EVENTS_COUNTED,
    Outcome.REPEATED: telemetry.EVENTS_REPEATED,
    Outcome.TOO_OLD: telemetry.EVENTS_TOO_OLD,
}


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
        self._homes = {sub.retry_topic: sub.topic for sub in subscriptions}
        self._holding = Holding(subscriptions)
        self._codec = codec
        self._readers = readers
        self._tries = tries
        self._erasing = erasing
        self._letters = Letters(tries, producer)
        self._cube = cube
        self._keep = keep

    def open(self, table: Counts, gaps: Gaps) -> None:
        """Count into this table from now on."""
        self._table = table
        self._gaps = gaps

    async def run(self, stream: Any) -> None:
        """Take what the stream gives, until it is cancelled. An error ends the app, for a loop that was left with an
        event open would be committed over.
        """
        self._gaps.reset()
        await self._tries.load()
        await self._erasing.load()
        batch: list[Record] = []
        generation: int | None = None
        try:
            async for event in stream.noack().events():
                record = Record(event)
                if record.generation != generation:
                    batch.clear()
                    self._gaps.reset()
                    generation = record.generation
                batch.append(record)
                if len(batch) >= BATCH or stream.channel.queue.empty():
                    if not record.revoked:
                        await self._erasing.foresee(self._table, batch)
                    async with self._erasing.turn:
                        # What a rebalance has taken away is read again; meanwhile the tables recover.
                        if not record.revoked:
                            await self._settle(batch)
                    batch.clear()
        except BaseException as end:
            if blameless(end):
                self._tries.owe()
            else:
                self._tries.charge()
            raise

    async def pay(self) -> None:
        """Give back the tries that the end of this process breaks off; no longer than PAY_SECONDS."""
        self._tries.owe()
        try:
            await asyncio.wait_for(self._tries.pay(), PAY_SECONDS)
        except (TimeoutError, MessagingError, psycopg.Error) as error:
            # They stay charged: one try each.
            log.warning("analytics.tries_not_given_back", error=f"{type(error).__name__}: {error}")

    async def _settle(self, batch: Sequence[Record]) -> None:
        """All of them, in order. Those that something may have died of go alone, lest their neighbours be charged."""
        for record in batch:
            await self._gaps.watch(record.place)
        rest = list(batch)
        while rest:
            fresh = next((n for n, record in enumerate(rest) if self._tries.suspect(record.place)), len(rest))
            together, rest = rest[: max(1, fresh)], rest[max(1, fresh) :]
            tally = Tally(self._table.look, self._keep, self._homes)
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
                outcome = tally.add(record.place, fact, time.time())
            except Exception as fault:
                error = classify(fault)
            else:
                self._holding.passed(sub)
                _METERS[outcome].labels(sub.name).inc()
                return
            tries = self._tries.of(record.place).tries
            decision = self._holding.decide(record, sub, error, tries)
            match decision:
                case retry.SetAside(reason=reason, message=message):
                    await self._letters.set_aside(record, sub, reason, message, tries)
                    tally.settled(record.place)
                    self._holding.set_aside(sub)
                    return
                case retry.RetryIn(seconds=seconds):
                    telemetry.RETRIES.labels(sub.name, type(error).__name__).inc()
                    await self._tries.note(record.place, retry.EXHAUSTED, retry.describe(error))
                case retry.Pause(resource=resource, longest=longest):
                    log.warning("analytics.paused", resource=resource, error=str(error))
                    self._holding.hold(sub, resource)
                    await self._tries.give_back([record.place])
                    seconds, pause = pause, min(longest, pause * 2)
                case retry.Wait(seconds=seconds) | retry.Later(seconds=seconds):
                    self._holding.hold(sub, "asked to wait")
                    await self._tries.give_back([record.place])
            await self._write(tally)
            await asyncio.sleep(seconds)
            await self._tries.begin([record.place])

    async def _read(self, record: Record) -> Fact:
        if record.owner is NOBODY:
            raise Undecodable("The record's key is not <tenant>:<sender>, so nobody can be asked about it.")
        event = self._codec.decode_known(record.headers, record.value, self._readers)
        if event is None:
            event = await self._codec.decode(record.headers, record.value, self._readers)
        fact = counting.fact(event, record.happened)
        # Else counts would be kept under a name that the record is not erased, and not held back, by.
        if (fact.tenant, fact.sender) != record.owner:
            raise NotRetryable("The event says it is another sender's than the record's key does.", "other_owner")
        return fact

    def _spent(self, record: Record) -> bool:
        begun, attempts = self._tries.of(record.place), self._of_topic[record.place.topic].backoff.attempts
        # It was counted, and its process ended before that was settled: once more, for Kafka may not have the counts.
        again = begun.reason is None and self._was_settled(record.place)
        return begun.tries >= (2 * attempts if again else attempts)

    def _was_settled(self, place: Place) -> bool:
        last = self._table.look(counting.progress(place.topic, place.partition))
        return last is not None and bool(place.offset <= last["o"])

    async def _bury(self, record: Record, tally: Tally) -> None:
        """An event that has had all its tries, the last of them in a process that is no more. One that was counted or
        set aside before that gets no letter."""
        if self._was_settled(record.place):
            tally.settled(record.place)
            return
        sub = self._of_topic[record.place.topic]
        tries, reason, error = self._tries.of(record.place)
        if reason is None or error is None:
            lost = LostAttempts(f"It was begun {tries} times, and each time its process died.")
            reason, error = lost.reason, str(lost)
        await self._letters.set_aside(record, sub, reason, error, tries)
        tally.settled(record.place)

    async def _write(self, tally: Tally) -> None:
        """What was counted goes to this disk and to Kafka; returns when both have it."""
        sent = []
        for key, value in tally.take():
            before = self._table.look(key)
            sent.append(self._table.write(key, value))
            self._cube.apply(key, before, value)
        await asyncio.gather(*sent)
