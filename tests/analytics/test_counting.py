"""Pure: keys, buckets, repeats, times to read, what is past its time."""

import dataclasses
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from messaging.errors import NotRetryable
from services.analytics import counting
from services.analytics.counting import Fact, Keep, Name, Outcome, Place, Tally, Value
from services.analytics.cube import Cube
from tests.analytics.conftest import read, received, request

DAY = 86_400.0
NOW = 20_000 * DAY + 5_000.0
KEEP = Keep(2 * DAY, 60 * DAY, 800 * DAY)

T = TypeVar("T")


def at_once(adding_up: Coroutine[Any, Any, T]) -> T:
    """A sum without the pauses it makes for others."""
    try:
        while True:
            adding_up.send(None)
    except StopIteration as end:
        return cast(T, end.value)


def total(cube: Cube, tenant: str = "acme", window: counting.Window = "day") -> int:
    """All events of a tenant."""
    found = at_once(cube.events(tenant, window, 0, 2**40, type_=None, sender=None))
    return sum(count for counts in found.values() for count in counts.values())


class Disk(dict[str, Value]):
    """A table without Kafka."""

    def __init__(self) -> None:
        super().__init__()
        self.cube = Cube()

    def write(self, tally: Tally, most: int | None = None) -> None:
        """Write the changes, or the first of them, as a crash does."""
        for number, (key, value) in enumerate(tally.take()):
            if number == most:
                return
            self.cube.apply(key, self.get(key), value)
            if value is None:
                self.pop(key, None)
            else:
                self[key] = value

    def add(self, offset: int, fact: Fact, now: float = NOW, topic: str = "t") -> bool:
        tally = Tally(self.get, KEEP, {"t.analytics.retry": "t"})
        outcome = tally.add(Place(topic, 0, offset), fact, now)
        self.write(tally)
        return outcome is Outcome.COUNTED

    def total(self, tenant: str = "acme", window: counting.Window = "day") -> int:
        return total(self.cube, tenant, window)


def counted(at: float = NOW, *, sender: str = "ann", document: str | None = None, began: bool = False) -> Fact:
    return Fact("document.read", "acme", sender, at, document, began)


def test_an_event_is_counted_by_the_minute_the_hour_and_the_day() -> None:
    disk = Disk()
    assert disk.add(0, counted())
    assert disk.add(1, counted(NOW + 61))
    assert sorted(Name.parse(key).rest[:2] for key in disk if Name.parse(key).rest[0] != counting.PROGRESS) == [
        ("day", str(int(20_000 * DAY))),
        ("hour", str(int(20_000 * DAY) + 3600)),
        ("minute", str(int(20_000 * DAY) + 4980)),
        ("minute", str(int(20_000 * DAY) + 5040)),
    ]
    assert [disk.total(window=window) for window in counting.SECONDS] == [2, 2, 2]
    assert disk[counting.progress("t", 0)] == {"o": 1}


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_at_any_point_counts_nothing_twice_and_loses_nothing(seed: int) -> None:
    """The writes of a batch stop anywhere; all that was not acknowledged is read again, some of it twice."""
    rng = random.Random(seed)
    facts = []
    for number in range(60):
        document, at = f"d{number // 2}", NOW + number
        facts.append(counted(at, sender=rng.choice("ab"), document=document, began=number % 2 == 0))
    disk, settled = Disk(), 0
    while settled < len(facts):
        size = rng.randrange(1, 12)
        tally = Tally(disk.get, KEEP)
        for offset in range(settled, min(settled + size, len(facts))):
            tally.add(Place("t", 0, offset), facts[offset], NOW)
        if rng.random() < 0.6:
            disk.write(tally, rng.randrange(0, 20))
            settled = max(0, settled - rng.choice((0, 0, 3)))
            continue
        disk.write(tally)
        settled += size
    wanted = Counter(fact.sender for fact in facts)
    found = at_once(disk.cube.events("acme", "day", 0, 2**40, type_=None, sender=None))
    assert {sender: sum(counts.values()) for sender, counts in found.items()} == dict(wanted)
    assert disk.cube.reading("acme", 0, 2**40, sender=None).count == 30
    assert not [key for key in disk if Name.parse(key).rest[0] == counting.WAITING]
    again = Cube()
    for key, value in disk.items():
        again.apply(key, None, value)
    assert again._counts == disk.cube._counts
    assert again._reading == disk.cube._reading
    assert again.keys == disk.cube.keys == len(disk)


def test_what_was_counted_is_written_again_for_kafka_may_not_have_it() -> None:
    disk = Disk()
    disk.add(7, counted())
    tally = Tally(disk.get, KEEP)
    assert tally.add(Place("t", 0, 7), counted(), NOW) is Outcome.REPEATED
    assert dict(tally.take()) == dict(disk)


def test_the_same_offset_of_another_topic_is_another_event() -> None:
    disk = Disk()
    assert disk.add(3, counted())
    assert disk.add(3, counted(), topic="t.analytics.retry")
    assert disk.total() == 2


def test_times_to_read_fall_into_their_buckets() -> None:
    disk = Disk()
    for number, took in enumerate((0.5, 1.0, 1.5, 100_000.0)):
        disk.add(2 * number, counted(NOW, document=f"d{number}", began=True))
        disk.add(2 * number + 1, counted(NOW + took, document=f"d{number}"))
    # Read a second time, or never received as far as we know: no time to tell.
    disk.add(90, counted(NOW + 9, document="d0"))
    disk.add(91, counted(NOW + 9, document="unheard-of"))
    found = disk.cube.reading("acme", 0, 2**40, sender="ann")
    assert (found.count, found.seconds) == (4, 100_003.0)
    assert (found.within[0], found.within[1], found.within[-1], sum(found.within)) == (2, 1, 1, 4)
    assert disk.cube.reading("acme", 0, 2**40, sender="bob").count == 0


def test_what_comes_by_way_of_the_retry_topic_has_its_time_to_read() -> None:
    """Its reading began on the topic; and the other way round."""
    disk = Disk()
    retry = "t.analytics.retry"
    disk.add(0, counted(NOW, document="d", began=True))
    disk.add(0, counted(NOW + 4, document="d"), topic=retry)
    disk.add(1, counted(NOW, document="e", began=True), topic=retry)
    disk.add(1, counted(NOW + 6, document="e"))
    found = disk.cube.reading("acme", 0, 2**40, sender="ann")
    assert (found.count, found.seconds) == (2, 10.0)
    assert not [key for key in disk if Name.parse(key).rest[0] == counting.WAITING]


def test_what_is_older_than_every_window_is_in_no_count_and_told_apart() -> None:
    disk = Disk()
    tally = Tally(disk.get, KEEP)
    old = NOW - 802 * DAY
    assert tally.add(Place("t", 0, 0), counted(old, document="d", began=True), NOW) is Outcome.TOO_OLD
    assert tally.add(Place("t", 0, 1), counted(old, document="d"), NOW) is Outcome.TOO_OLD
    assert dict(tally.take()) == {counting.progress("t", 0): {"o": 1}}
    # In the day's count only, and then again.
    assert [tally.add(Place("t", 0, 2), counted(NOW - 99 * DAY), NOW) for _ in range(2)] == [
        Outcome.COUNTED,
        Outcome.REPEATED,
    ]


def test_buckets_past_their_time_go_and_do_not_come_back() -> None:
    disk = Disk()
    disk.add(0, counted(NOW - 3 * DAY))
    assert [disk.total(window=window) for window in counting.SECONDS] == [0, 1, 1]
    disk.add(1, counted(NOW))
    disk.add(2, counted(NOW, document="d", began=True))
    later = NOW + 61 * DAY
    old = [key for key, value in disk.items() if counting.outdated(key, value, later, KEEP)]
    assert sorted({Name.parse(key).rest[0] for key in old}) == ["hour", "minute", "waiting"]
    for key in old:
        disk.cube.apply(key, disk.pop(key), None)
    assert [disk.total(window=window) for window in counting.SECONDS] == [0, 0, 3]
    assert counting.progress("t", 0) in disk


@pytest.mark.parametrize(
    ("told", "at"),
    [
        ("2024-10-04T01:23:20Z", NOW),
        ("2024-10-04T03:23:20+02:00", NOW),
        ("2024-10-04T01:23:20", 1.0),
        ("yesterday", 1.0),
        ("9999-01-01T00:00:00Z", 1.0),
        ("0001-01-01T00:00:00Z", 1.0),
        (None, 1.0),
    ],
)
def test_an_event_tells_its_time_if_that_can_be(told: str | None, at: float) -> None:
    stored = NOW if at == NOW else 1.0
    assert counting.happened(told, stored) == at


def test_facts_of_events() -> None:
    assert counting.fact(received(1), 5.0) == Fact("document.received", "acme", "ann", 5.0, "d-1", began=True)
    assert counting.fact(read(1), 5.0) == Fact("document.read", "acme", "ann", 5.0, "d-1")
    assert counting.fact(request(1), 5.0) == Fact("request.created", "acme", "ann", 5.0)


@pytest.mark.parametrize(
    "wrong", [{"sender": ""}, {"sender": "a\x1fb"}, {"tenant": "", "sender": "x"}, {"tenant": "a:b", "sender": "x"}]
)
def test_an_event_of_nobody_is_not_counted(wrong: dict[str, Any]) -> None:
    with pytest.raises(NotRetryable):
        counting.fact(request(1, **wrong), 5.0)


@pytest.mark.parametrize("document", ["", "a\x1fb", "a\0b", "x" * 201])
def test_an_event_about_what_no_key_can_name_is_not_counted(document: str) -> None:
    for event in (read(1), received(1)):
        with pytest.raises(NotRetryable) as refused:
            counting.fact(dataclasses.replace(event, document_id=document), 5.0)
        assert refused.value.reason == "unusable_id"
