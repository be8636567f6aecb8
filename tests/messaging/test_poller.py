"""What a group member may commit when it loses partitions."""

from typing import cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from messaging.poller import Poller, Sink, consumer_config
from tests.messaging.harness import until


class Listening(Sink):
    """Remembers what was lost."""

    def __init__(self) -> None:
        self.lost: list[TopicPartition] = []

    def partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.lost += partitions


class Committing:
    """A consumer that remembers what it was asked to commit."""

    def __init__(self) -> None:
        self.committed: list[TopicPartition] = []

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert asynchronous
        self.committed += offsets


@pytest.mark.parametrize("order", [("lost", "told"), ("told", "lost")], ids=" then ".join)
async def test_what_was_lost_is_not_committed_by_who_has_not_heard_of_it(order: tuple[str, str]) -> None:
    """A process that was frozen: its timer tells it to commit, and its poll thread is told that all is lost.

    The client has joined again by the time the commit leaves, so the broker would take it, and go back to it.
    """
    sink, consumer = Listening(), Committing()
    poller = Poller(consumer_config("127.0.0.1:1", "g", "g"), ["t"], sink, 1.0)
    place = TopicPartition("t", 0, 21)
    steps = {
        "lost": lambda: poller._on_lost(cast(Consumer, None), [place]),
        "told": lambda: poller.commit([place]),
    }
    for step in order:
        steps[step]()
    poller._run_commands(cast(Consumer, consumer))
    assert consumer.committed == []
    await until(lambda: sink.lost == [place])
    poller.commit([place])
    poller._run_commands(cast(Consumer, consumer))
    assert consumer.committed == [place], "from here on the loop knows what is its own"
