"""Events that cannot be counted, and servers that are away: nothing stops the stream for good, nothing is lost."""

import time
from typing import Any

from messaging.deadletter import Death, original_headers, sent_back_headers
from messaging.message import headers_to_dict
from tests.analytics.conftest import Place, Start, read, received, request, until
from tests.fixtures.outbox import Proxy, host_of
from tests.fixtures.processes import Home
from tests.messaging.test_garbled import put_garbled


def deaths(place: Place) -> list[tuple[str | None, int | None]]:
    found = [Death(record.headers()) for record in place.read_all(place.dead)]
    return sorted((death.reason, death.attempts) for death in found)


def test_what_cannot_be_counted_dies_and_later_events_are_counted(place: Place, start: Start, home: Home) -> None:
    """An event that fails, garbage, an unknown schema, a header that is no text, a version without a reader."""
    with start() as counter:
        place.send([received(1), b"garbage", b"\x00\x7f\xff\xff\xffno such schema", read(1)])
        place.send([read(1, sender="poison")])
        put_garbled(place.infra, place.documents, b"acme:ann", b"v", b"\xff\xfe")
        place.send([read(2)], headers=[("event_version", b"9")])
        until(lambda: len(place.read_all(place.dead)) == 5, counter)
        place.send([request(1)])
        took = until(lambda: counter.total() == 3, counter)
        assert took < 10, "nothing holds the next one"
        until(lambda: place.committed() == 8, counter)
        assert deaths(place) == [
            ("attempts_exhausted", 3),
            ("undecodable", 1),
            ("unknown_event", 1),
            ("unknown_event", 1),
            ("unknown_event", 1),
        ]
        assert home.rows("select * from event_tries") == []
        (letter,) = [
            record
            for record in place.read_all(place.dead)
            if headers_to_dict(record.headers()).get("event_version") == b"9"
        ]
        assert letter.key() == b"acme:ann"
        assert headers_to_dict(letter.headers())["workbot_dead_consumer"] == b"analytics"
        # Sent back once there is a reader, here by telling its true version, it is counted like any other.
        original = [pair for pair in original_headers(letter.headers()) if pair[0] != "event_version"]
        headers = sent_back_headers([*original, ("event_version", b"1")], origin="x/0/0", generation=1)
        place.put(f"{place.documents}.analytics.retry", letter.key(), letter.value(), headers)
        until(lambda: counter.total() == 4, counter)


def test_the_event_behind_a_poison_event_waits_for_its_tries_only(place: Place, start: Start) -> None:
    """Compared with an event that nothing is in front of; three tries are two pauses of half a second at most."""

    def took(total: int, *events: Any) -> float:
        place.send(events)
        return until(lambda: counter.total() == total, counter)

    with start() as counter:
        took(1, read(1))
        control = sorted(took(2 + n, read(2 + n)) for n in range(5))[2]
        behind = sorted(took(7 + n, read(20 + n, sender="poison"), read(30 + n)) for n in range(3))[1]
        until(lambda: len(place.read_all(place.dead)) == 3, counter)
        print(f"{1000 * control:.0f} ms alone, {1000 * behind:.0f} ms behind a poison event")
        assert behind < 1.0 + 10 * max(control, 0.1)


def test_tries_outlive_the_process(place: Place, start: Start, home: Home) -> None:
    """The kill comes while its second try is under way, which takes longer than any test waits."""
    with start() as counter:
        place.send([read(1, sender="slowpoison")])
        until(lambda: home.rows("select tries from event_tries") == [(2,)], counter)
        counter.kill()
    with start() as counter:
        until(lambda: len(place.read_all(place.dead)) == 1, counter)
        place.send([read(2)])
        until(lambda: counter.total() == 1, counter)
    assert deaths(place) == [("attempts_exhausted", 3)]
    assert home.rows("select * from event_tries") == []


def test_what_kills_the_process_is_found_out_and_its_neighbours_are_counted(
    place: Place, start: Start, home: Home
) -> None:
    place.send([received(1, sender="killer"), *(received(n, sender=f"s{n}") for n in range(20))])
    for tries in (1, 2, 3):
        with start(wait=False) as counter:
            until(lambda: counter.process.poll() is not None)
            assert max(int(str(row[0])) for row in home.rows("select tries from event_tries")) == tries
    with start() as counter:
        until(lambda: counter.total() == 20, counter)
    assert deaths(place) == [("killed_its_process", 3)]
    assert home.rows("select * from event_tries") == []


def test_an_outage_of_registry_or_database_costs_nothing(place: Place, start: Start, home: Home) -> None:
    registry = Proxy(place.infra.registry_url.split("/")[2], kafka=False)
    database = Proxy(host_of(home.conninfo), kafka=False)
    try:
        with start(
            registry_url=place.infra.registry_url.replace(place.infra.registry_url.split("/")[2], registry.address),
            database_url=f"postgresql://{home.name}@{database.address}/{home.name}",
        ) as counter:
            registry.cut()
            place.send([received(1), request(1), read(1)])
            until(lambda: "analytics.paused" in counter.log.read_text(), counter)
            time.sleep(1.5)
            assert counter.total() == 0
            assert {row[0] for row in home.rows("select tries from event_tries")} <= {0, 1}
            registry.heal()
            until(lambda: counter.total() == 3, counter)
            database.cut()
            place.send([request(2), request(3)])
            time.sleep(1.5)
            assert counter.total() == 3
            database.heal()
            until(lambda: counter.total() == 5, counter)
    finally:
        registry.close()
        database.close()
    assert deaths(place) == []
