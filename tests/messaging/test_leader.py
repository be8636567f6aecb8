"""One leads, the others stand by: takeover after a kill and after a freeze, with real processes on real signals."""

import signal
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from messaging import leader
from messaging.leader import Leader, LostLead
from messaging.relay import Relay
from tests.fixtures.outbox import Connection, Follower, Service, fill, migrated, relay_process, wait_for, write
from tests.fixtures.stack import Database, Infra
from tests.messaging.leaderkills import leading_process, standbys, strike

TAKEOVER_SECONDS = 3.0


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


def test_killed_under_load_again_and_again(service: Service, infra: Infra, topic: Callable[..., str]) -> None:
    """The short form of `python -m tests.chaos.relays`, which kills twenty times: nothing lost, order kept per key,
    and after each kill the next event is out within three seconds."""
    found = strike(service, infra.kafka_bootstrap, topic(), kills=4, seed=1)
    assert (found.lost, found.invented, found.out_of_order) == ([], [], [])
    assert found.written > 4 * 20
    assert max(found.recoveries) < TAKEOVER_SECONDS, found.recoveries


def test_a_frozen_leader_is_replaced_and_does_no_harm_when_it_resumes(
    service: Service, infra: Infra, topic: Callable[..., str]
) -> None:
    """Frozen in the middle of a backlog. Resumed, it adds nothing but repeats, and can lead again later."""
    name = topic()
    with (
        relay_process(service, infra.kafka_bootstrap) as frozen,
        service.connect() as writer,
        Follower(infra.kafka_bootstrap, name) as follower,
    ):
        wait_for(lambda: leading_process(service) == frozen.pid)
        write(writer, name, "-1")
        follower.see("-1")
        with relay_process(service, infra.kafka_bootstrap) as standby:
            wait_for(lambda: standbys(service) == 1)
            fill(service, name, 30_000, keys=10)
            follower.until(lambda seen: len(seen.records) > 1000)
            frozen.send_signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            write(writer, name, "30000")
            assert leading_process(service) == frozen.pid
            wait_for(lambda: leading_process(service) == standby.pid)
            assert time.monotonic() - stopped_at < TAKEOVER_SECONDS
            follower.see("30000", 20)
            moved = version(service)

            frozen.send_signal(signal.SIGCONT)
            follower.poll(1.5)
            assert leading_process(service) == standby.pid
            resumed = len(follower.records)
            write(writer, name, "30001")
            follower.see("30001")
            follower.poll(0.3)
            assert follower.subjects()[resumed:] == ["30001"], "the resumed process still sends"
            assert version(service) > moved
        write(writer, name, "30002")
        follower.see("30002")
        assert leading_process(service) == frozen.pid
    assert set(follower.firsts()) == {str(number) for number in range(-1, 30_003)}
    for key in {record.key for record in follower.records}:
        first = [int(subject) for subject in follower.firsts(key)]
        assert first == sorted(first)


def version(service: Service) -> int:
    return int(service.execute("SELECT version FROM relay_position")[0][0])


def test_of_two_relays_one_leads_and_stopping_it_hands_over(
    service: Service, infra: Infra, topic: Callable[..., str]
) -> None:
    name = topic()
    first, second = (Relay(service.conninfo, infra.kafka_bootstrap, service.name) for _ in range(2))
    first.start()
    wait_for(lambda: first.leading)
    second.start()
    try:
        with service.connect() as writer, Follower(infra.kafka_bootstrap, name) as follower:
            write(writer, name, "one")
            follower.see("one")
            time.sleep(0.6)
            assert (first.leading, second.leading) == (True, False)
            assert first.healthy()
            assert second.healthy()
            assert first.stop()
            assert not first.healthy()
            stopped_at = time.monotonic()
            write(writer, name, "two")
            assert follower.see("two").at - stopped_at < TAKEOVER_SECONDS
            assert second.leading
            assert follower.subjects() == ["one", "two"]
    finally:
        first.stop()
        second.stop()


@pytest.fixture
def connections(service: Service) -> Iterator[list[Connection]]:
    opened = [service.connect() for _ in range(2)]
    yield opened
    for connection in opened:
        connection.close()


def test_a_beating_leader_is_left_alone_and_a_silent_one_is_deposed(
    service: Service, connections: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "STALE_SECONDS", 0.4)
    old, standby = (Leader(connection, "r", str(at)) for at, connection in enumerate(connections))
    assert old.claim()
    assert not standby.claim()
    for _ in range(4):
        time.sleep(0.2)
        old.beat(0)
        assert not standby.depose()
    time.sleep(0.5)
    with pytest.raises(LostLead):
        old.ensure()
    with pytest.raises(LostLead):
        old.beat(0)
    assert standby.depose()
    wait_for(standby.claim)
    assert not standby.depose()
    with pytest.raises(psycopg.OperationalError):
        connections[0].execute("SELECT 1")


def test_a_leader_that_never_beat_is_deposed_too(
    service: Service, connections: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got the lock and froze before its first heartbeat; an older heartbeat of somebody else stands there."""
    monkeypatch.setattr(leader, "STALE_SECONDS", 0.4)
    predecessor = Leader(connections[1], "r", "predecessor")
    assert predecessor.claim()
    connections[1].close()
    standby_connection = service.connect()
    try:
        lock_only = Leader(connections[0], "r", "frozen")
        wait_for(
            lambda: connections[0].execute(
                "SELECT pg_try_advisory_lock(1988, %s)", [lock_only._key]
            ).fetchone() == (True,)
        )  # fmt: skip
        standby = Leader(standby_connection, "r", "standby")
        assert not standby.claim()
        assert not standby.depose()
        wait_for(standby.depose)
        wait_for(standby.claim)
    finally:
        standby_connection.close()


def test_another_relays_leader_is_not_touched(
    service: Service, connections: list[Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "STALE_SECONDS", 0.1)
    assert Leader(connections[0], "one", "a").claim()
    time.sleep(0.2)
    other = Leader(connections[1], "two", "b")
    assert not other.depose()
    assert other.claim()
