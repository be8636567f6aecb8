"""What a group member may commit when partitions are taken from it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from messaging.poller import Poller, Sink, consumer_config
from tests.messaging.harness import until

PLACE = TopicPartition("t", 0, 21)


class Listening(Sink):
    """Remembers what was taken, and answers at once how far a revoked partition is done."""

    def __init__(self) -> None:
        self.taken: list[TopicPartition] = []

    def partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.taken += partitions

    def partitions_revoked(self, partitions: list[TopicPartition], drained: "Future[list[TopicPartition]]") -> None:
        self.taken += partitions
        drained.set_result([TopicPartition("t", 0, 30)])


class Committing:
    """A consumer that remembers how far it was asked to commit."""

    def __init__(self) -> None:
        self.committed: list[int] = []

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        self.committed += [place.offset for place in offsets]


def lost(poller: Poller, consumer: Consumer) -> None:
    """A process that was frozen: the client joins again as soon as this is told."""
    poller._on_lost(consumer, [PLACE])


def revoked(poller: Poller, consumer: Consumer) -> None:
    """A rebalance. It waits for the loop, so it is on a thread of its own, as the poll thread is."""
    threading.Thread(target=poller._on_revoke, args=(consumer, [PLACE])).start()


@pytest.mark.parametrize("told_first", [False, True], ids=["taken, then told", "told, then taken"])
@pytest.mark.parametrize(("taken", "settled"), [(lost, []), (revoked, [30])])
async def test_what_was_taken_is_not_committed_by_who_has_not_heard_of_it(
    taken: Callable[[Poller, Consumer], None], settled: list[int], told_first: bool
) -> None:
    """The timer tells to commit what the loop takes for its own; the broker would go back to it."""
    sink, committing = Listening(), Committing()
    consumer = cast(Consumer, committing)
    poller = Poller(consumer_config("127.0.0.1:1", "g", "g"), ["t"], sink, 30.0)
    if told_first:
        # What is queued when a rebalance begins is still ours, and goes first; after a loss it is not.
        poller.commit([PLACE])
        settled = [21, *settled] if settled else []
    taken(poller, consumer)
    while not poller._taken:
        pass  # without a turn of the loop
    if not told_first:
        poller.commit([PLACE])
    await until(lambda: sink.taken == [PLACE])
    await until(lambda: committing.committed == settled)
    poller._run_commands(consumer)
    assert committing.committed == settled
    poller.commit([PLACE])
    poller._run_commands(consumer)
    assert committing.committed == [*settled, 21], "from here on the loop knows what is its own"
