"""How rows leave for Kafka: nothing lingers that could go, and nobody asks for answers that are all in."""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from messaging.cursor import Row
from messaging.publisher import LINGER_MS, Publisher
from messaging.relay import Relay
from messaging.term import Term
from tests.fixtures.outbox import Follower, Service, migrated, write
from tests.fixtures.stack import Database, Infra


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


def row(topic: str, number: int) -> Row:
    text = str(number)
    return number, topic, f"acme:{number % 7}", b"x" * 300, text, "tests", "thing.happened", "", text, "1", None


def test_a_push_lets_nothing_linger(infra: Infra, topic: Callable[..., str]) -> None:
    """The same row, sent and pushed or sent and waited for, in turns: the second has lingered for others to come."""
    publisher = Publisher(infra.kafka_bootstrap, "tests", lambda: None)
    name = topic(1)

    def taken(wait: Callable[[float], None]) -> float:
        began = time.perf_counter()
        batch = publisher.send([row(name, 0)])
        while batch.outstanding:
            wait(5.0)
        return time.perf_counter() - began

    taken(publisher.push)
    pushed, polled = zip(*((taken(publisher.push), taken(publisher.poll)) for _ in range(15)), strict=True)
    assert statistics.median(pushed) < statistics.median(polled) - 0.5 * LINGER_MS / 1000
    publisher.discard()


def test_a_push_ends_when_every_answer_is_in(infra: Infra, topic: Callable[..., str]) -> None:
    publisher = Publisher(infra.kafka_bootstrap, "tests", lambda: None)
    name = topic(6)
    batch = publisher.send([row(name, number) for number in range(500)])
    assert batch.outstanding == 500
    began = time.perf_counter()
    publisher.push(60.0)
    assert time.perf_counter() - began < 30.0
    assert batch.outstanding == 0
    assert publisher.settle(batch) == []
    publisher.discard()


def test_the_relay_does_not_spin_between_a_row_that_is_confirmed_and_its_position(
    service: Service, infra: Infra, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position is stored only every 20 ms, and what waits for it has no more answers to wait for."""
    name, rounds, real = topic(6), 0, Term._check

    def counted(term: Term) -> None:
        nonlocal rounds
        rounds += 1
        real(term)

    relay = Relay(service.conninfo, infra.kafka_bootstrap, service.name)
    relay.start()
    try:
        with service.connect() as writer, Follower(infra.kafka_bootstrap, name, 6) as follower:
            write(writer, name, "first")
            follower.take(1)
            monkeypatch.setattr(Term, "_check", counted)
            began = time.perf_counter()
            for number in range(100):
                write(writer, name, str(number))
                time.sleep(0.01)
            seconds = time.perf_counter() - began
            follower.take(100)
    finally:
        assert relay.stop(15), "the relay did not stop"
    # A look at the table each 2 ms at most, a wait and a few checks with it.
    assert rounds < 3_000 * seconds
