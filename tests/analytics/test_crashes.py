"""kill -9 amid a load, again and again: every event is counted, and none twice."""

import random
import shutil
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.analytics.conftest import Place, Start, read, received, request, until
from tests.analytics.worker import SLOW
from tests.fixtures.outbox import Proxy

EVENTS = 3200
RATE = 400.0
KILLS = 2


def load(total: int) -> list[Any]:
    """Documents received and read, and requests, of fifty senders, in an order that never changes."""
    made: list[Any] = []
    for number in range(total // 4):
        sender = f"s{number % 50}"
        made += [received(number, sender=sender), request(2 * number, sender=sender)]
        made += [request(2 * number + 1, sender=sender), read(number, sender=sender)]
    return made


def test_nothing_is_lost_when_the_process_is_killed_again_and_again(
    place: Place, start: Start, tmp_path: Path
) -> None:
    """Every other time the disk is lost too, and the tables come back from Kafka alone."""
    events = load(EVENTS)
    wanted = Tally((event.sender, event.TYPE) for event in events)

    def feed() -> None:
        for first in range(0, len(events), 40):
            place.send(events[first : first + 40])
            time.sleep(40 / RATE)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    rng = random.Random(5)
    for kill in range(KILLS):
        with start() as counter:
            time.sleep(rng.uniform(0.05, 1.0))
            counter.kill()
        if kill % 2:
            shutil.rmtree(tmp_path / "tables")
    feeding.join()
    with start() as counter:
        until(lambda: counter.total() >= EVENTS, counter)
        until(lambda: place.committed() == EVENTS, counter)
        answer = counter.events().json()
        repeats = counter.repeats()
    found = {(each["sender"], name): count for each in answer["senders"] for name, count in each["types"].items()}
    assert found == dict(wanted)
    assert answer["reading"]["count"] == EVENTS // 4
    print(f"{repeats:g} repeats in the last life, none counted twice")


def test_a_second_process_stands_by_and_takes_over_also_while_kafka_is_away(
    place: Place, start: Start, tmp_path: Path
) -> None:
    kafka = Proxy(place.infra.kafka_bootstrap)
    try:
        with (
            start() as first,
            start(tables=tmp_path / "other", wait=False, kafka_bootstrap=kafka.address) as second,
        ):
            place.send(load(400))
            until(lambda: first.total() == 400, first)
            until(lambda: "analytics.stands_by" in second.log.read_text())
            answer = second.events()
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert httpx.get(f"{second.url}/healthz", trust_env=False).status_code == 200
            kafka.cut()
            place.send(load(400))
            first.kill()
            until(lambda: "analytics.not_started" in second.log.read_text())
            kafka.heal()
            until(lambda: second.total() == 800, second)
            # Away once more, while it counts.
            kafka.cut()
            place.send([request(1)])
            time.sleep(2)
            kafka.heal()
            until(lambda: second.total() == 801, second)
    finally:
        kafka.close()


@pytest.mark.parametrize("unread", [Place.rewind, Place.forget])
def test_what_is_fetched_and_thrown_away_is_fetched_again(
    place: Place, start: Start, tmp_path: Path, unread: Callable[[Place], None]
) -> None:
    """It is asked for while the tables recover, and comes when they have: faust takes no notice of it. Nothing is
    committed yet, and nothing comes afterwards that would show what is missing."""
    events = [received(1), received(2, sender="bob"), received(3, tenant="other"), read(1), request(1)]
    place.send(events)
    with start() as counter:
        until(lambda: place.committed() == len(events), counter)
    shutil.rmtree(tmp_path / "tables")
    unread(place)
    (tmp_path / SLOW).touch()
    with start() as counter:
        until(lambda: place.committed() == len(events), counter)
        assert (counter.total(), counter.total("other")) == (4, 1)
        assert counter.repeats() == len(events)
