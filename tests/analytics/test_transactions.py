"""Events that a producer writes in transactions: what was committed is counted, and their marks stop nobody."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer

from messaging.message import new_id
from services.analytics.bounds import Between
from tests.analytics.conftest import Place, Start, request, until
from tests.analytics.test_erasure import senders

PARTITION = 1
EMPTY = "workbot_offsets_empty_total"
MANY = 150


class Transactions:
    """A producer that writes in transactions, all to one partition."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._producer = Producer(
            {"bootstrap.servers": place.infra.kafka_bootstrap, "transactional.id": f"{place.group}-writer"}
        )
        self._producer.init_transactions(30)

    def write(self, events: Sequence[Any], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for event in events:
            self._producer.produce(
                self._place.requests,
                partition=PARTITION,
                key=f"{event.tenant}:{event.sender}",
                value=self._place.codec.encode(event),
                headers=[
                    ("ce_type", event.TYPE.encode()),
                    ("event_version", str(event.MAJOR).encode()),
                    ("ce_id", str(new_id()).encode()),
                ],
            )
        assert self._producer.flush(30) == 0
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)


def test_what_was_committed_is_counted_and_what_was_taken_back_is_not(place: Place, start: Start) -> None:
    """From the first offset on, where faust leaves gaps to themselves; among events without a transaction; at the
    end of the partition; and by the next process."""
    writer = Transactions(place)
    writer.write([request(0)], commit=True)  # 0, and its mark
    writer.write([request(n, sender="gone") for n in range(3)], commit=False)  # 2 to 4, and 5
    writer.write([request(1), request(2, sender="bob")], commit=True)  # 6, 7, and 8
    writer.write([request(9, sender="gone")], commit=False)  # 9, and 10
    with start() as counter:
        until(lambda: senders(counter) == {"ann": 2, "bob": 1}, counter)
        writer.write([request(3)], commit=True)  # 11, and 12
        until(lambda: senders(counter) == {"ann": 3, "bob": 1}, counter)
        assert counter.metric(EMPTY) == 5 + 3
        # Up to the last event; what follows it is nobody's.
        until(lambda: place.committed_of(place.requests, PARTITION) == 12, counter)
        writer.write([request(9, sender="gone")], commit=False)  # 13, and 14
    writer.write([request(4, sender="bob")], commit=True)  # 15
    with start() as counter:
        until(lambda: senders(counter) == {"ann": 3, "bob": 2}, counter)
        assert counter.metric(EMPTY) == 3
        until(lambda: place.committed_of(place.requests, PARTITION) == 16, counter)
        # Many in a row do not hold up the group: the end of each is passed over, and committed over.
        for n in range(MANY):
            writer.write([request(100 + n, sender="bob")], commit=True)  # from 17 on
        until(lambda: senders(counter) == {"ann": 3, "bob": 2 + MANY}, counter)
        until(lambda: place.committed_of(place.requests, PARTITION) == 16 + 2 * MANY, counter)


async def test_kafka_says_whether_an_event_lies_between(place: Place) -> None:
    writer = Transactions(place)
    writer.write([request(0)], commit=True)
    writer.write([request(9, sender="gone")] * 2, commit=False)  # 2, 3, and 4
    writer.write([request(1), request(2)], commit=True)  # 5, 6
    between = Between(place.infra.kafka_bootstrap, "test")
    try:
        asked = [(1, 5), (1, 6), (0, 5), (6, 7), (7, 8)]
        found = [await between.ask(place.requests, PARTITION, *each) for each in asked]
        assert found == [None, 5, 0, 6, None]
        assert await between.first(place.requests, PARTITION) == 0
        place.delete_before(place.requests, PARTITION, 3)
        assert await between.first(place.requests, PARTITION) == 3
        assert await between.ask(place.requests, PARTITION, 0, 5) is None
        assert await between.ask(place.requests, PARTITION, 0, 6) == 5
    finally:
        await between.close()
