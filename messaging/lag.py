"""How far a consumer group is: per partition its position, the end, and how long the oldest unread record has waited.

Asked from outside the group, so it answers also when no member of it runs.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from messaging.admin import PASSING
from messaging.errors import Outage
from messaging.poller import reader_config

ANSWER_SECONDS = 5.0
READ_SECONDS = 2.0
"""How long the oldest unread records may take to be read, all partitions together."""

Place = tuple[str, int]
Record = tuple[str, int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as its group has it.

    position        the next record to finish; None before the group's first commit
    end             one past the newest record
    lag             records between them that are still there
    oldest_seconds  age of the first of them; None when there is none, or it could not be read in time
    """

    topic: str
    partition: int
    position: int | None
    end: int
    lag: int
    oldest_seconds: float | None


class Lag:
    """Asks Kafka. Bounded work: a request a group, two for all ends, and one record of each partition that lags."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "log_level": 2,
        }
        self._admin = AdminClient(self._config)
        self._reader = Consumer(
            reader_config(bootstrap, client_id)
            | {
                # One record is wanted of each partition, and a set of records is the least that Kafka sends.
                "queued.min.messages": 1,
                "fetch.message.max.bytes": 65536,
                # Else the first partition's records hold the others back for a second.
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 20,
                "log_level": 2,
            }
        )
        self._stamps: dict[Record, float] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, groups: Mapping[str, Sequence[Place]]) -> dict[str, list[PartitionLag]]:
        """For each group its places, in their order. Raises Outage (resource "kafka")."""
        async with self._one_at_a_time:
            try:
                return await asyncio.to_thread(self._ask, groups)
            except Outage:
                await asyncio.to_thread(self._renew)
                raise

    async def close(self) -> None:
        """Close the clients."""
        async with self._one_at_a_time:
            await asyncio.to_thread(self._reader.close)

    def _renew(self) -> None:
        # One that gave up on a coordinator ends the process when that comes back (librdkafka issue 4605). It is let
        # go of here, in the thread: its end waits for threads of its own.
        self._admin = AdminClient(self._config)

    def _ask(self, groups: Mapping[str, Sequence[Place]]) -> dict[str, list[PartitionLag]]:
        places = list(dict.fromkeys(place for wanted in groups.values() for place in wanted))
        try:
            answers = [
                self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in wanted])],
                    request_timeout=ANSWER_SECONDS,
                )[group]
                for group, wanted in groups.items()
            ]
            ends = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            starts = self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            committed = [_positions(_result(answer)) for answer in answers]
            unread = {
                (*place, max(positions.get(place, 0), starts[place])): None
                for positions, wanted in zip(committed, groups.values(), strict=True)
                for place in wanted
                if max(positions.get(place, 0), starts[place]) < ends[place]
            }
            self._read_stamps(list(unread))
        except KafkaException as error:
            fault = error.args[0]
            said = "did not answer when asked" if fault.code() in PASSING else f"refused ({fault.str()}) to say"
            raise Outage(f"Kafka {said} how far its groups are.", "kafka") from error
        except FutureTimeout as error:
            raise Outage("Kafka did not answer when asked how far its groups are.", "kafka") from error
        return {
            group: [self._lag(place, positions.get(place), starts[place], ends[place]) for place in wanted]
            for (group, wanted), positions in zip(groups.items(), committed, strict=True)
        }

    def _lag(self, place: Place, position: int | None, start: int, end: int) -> PartitionLag:
        first = max(position or 0, start)
        stamp = self._stamps.get((*place, first)) if first < end else None
        age = None if stamp is None else max(0.0, time.time() - stamp)
        return PartitionLag(*place, position, end, max(0, end - first), age)

    def _offsets(self, places: Sequence[Place], which: OffsetSpec) -> dict[Place, int]:
        request = {TopicPartition(*place): which for place in places}
        answers = self._admin.list_offsets(request, request_timeout=ANSWER_SECONDS)
        return {(place.topic, place.partition): _result(answer).offset for place, answer in answers.items()}

    def _read_stamps(self, unread: Sequence[Record]) -> None:
        """Learn the time stamps of these records; forget those nobody asks for any more."""
        self._stamps = {record: self._stamps[record] for record in unread if record in self._stamps}
        missing = [record for record in unread if record not in self._stamps]
        deadline = time.monotonic() + READ_SECONDS
        while missing and time.monotonic() < deadline:
            # Groups of one topic stand at different places: one of a partition at a time.
            turn = {(topic, partition): offset for topic, partition, offset in reversed(missing)}
            self._read_turn(turn, deadline)
            missing = [record for record in missing if turn.get(record[:2]) != record[2]]

    def _read_turn(self, turn: Mapping[Place, int], deadline: float) -> None:
        self._reader.assign([TopicPartition(*place, offset) for place, offset in turn.items()])
        waiting = set(turn)
        while waiting and (left := deadline - time.monotonic()) > 0:
            record = self._reader.poll(left)
            if record is None or record.error() is not None:
                continue
            # The first that is there: transaction markers and compaction leave numbers without a record.
            place = str(record.topic()), int(record.partition() or 0)
            if place in waiting:
                waiting.discard(place)
                self._stamps[(*place, turn[place])] = record.timestamp()[1] / 1000
        self._reader.unassign()


def _positions(answer: ConsumerGroupTopicPartitions) -> dict[Place, int]:
    return {(p.topic, p.partition): p.offset for p in answer.topic_partitions or () if p.offset >= 0}


def _result(answer: "Future[T]") -> T:
    return answer.result(ANSWER_SECONDS + 1.0)
