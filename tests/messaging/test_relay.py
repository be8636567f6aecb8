"""The relay end to end: from a transaction on a real Postgres to records on a real Kafka."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from prometheus_client import REGISTRY
from psycopg.conninfo import make_conninfo
from structlog.testing import capture_logs

from messaging import destinations, outbox, watchdog
from messaging.bell import Bell
from messaging.cursor import Cursor, Order, Position, Row, Slice
from messaging.errors import OutboxFull
from messaging.leader import LostLead
from messaging.positions import Positions
from messaging.publisher import Batch, Publisher
from messaging.relay import Relay
from tests.fixtures.outbox import (
    Follower,
    Proxy,
    Service,
    drain,
    envelope,
    fill,
    host_of,
    migrated,
    relay_process,
    wait_for,
    write,
)
from tests.fixtures.stack import Database, Infra

Start = Callable[..., AbstractContextManager[Relay]]
MANDATORY = {"ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time", "ce_subject", "event_version"}


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


@pytest.fixture
def relaying(service: Service, infra: Infra) -> Start:
    """`with relaying(): …` runs a relay of the test's own; its metrics carry the database's name."""

    @contextmanager
    def start(
        order: Order = "commit", bootstrap: str = infra.kafka_bootstrap, limit: int = 1_000_000, conninfo: str = ""
    ) -> Iterator[Relay]:
        relay = Relay(conninfo or service.conninfo, bootstrap, service.name, order, backlog_limit=limit)
        relay.start()
        try:
            yield relay
        finally:
            assert relay.stop(15), "the relay did not stop"

    return start


def metric(service: Service, name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"workbot_relay_{name}", {"relay": service.name, **labels}) or 0.0


def asleep(service: Service) -> bool:
    found = service.execute(
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND classid = 1987"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return bool(found)


def keeps_awake(service: Service, writer: "psycopg.Connection[tuple[object, ...]]") -> bool:
    """Whether this open transaction found the relay awake, which then stays so until it ends."""
    pid = writer.info.backend_pid
    return bool(
        service.execute(f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' AND pid = {pid}")
    )


def test_every_record_carries_key_value_and_all_headers(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    name = topic(6)
    happened = datetime.now(UTC)
    one = replace(envelope(name, "one", key="acme:zoë", payload=bytes(range(256))), occurred_at=happened)
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name, 6) as follower:
        writer.execute(outbox.INSERT, outbox.parameters([one]))
        fill(service, name, 500)
        records = follower.take(501)
    assert all(record.headers.keys() >= MANDATORY for record in records)
    record = next(record for record in records if record.subject == "one")
    assert (record.key, record.value) == (one.key, one.payload)
    assert record.headers == {
        "ce_specversion": "1.0",
        "ce_id": str(one.id),
        "ce_source": "tests",
        "ce_type": "thing.happened",
        "ce_time": happened.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "ce_subject": "one",
        "event_version": "1",
        "traceparent": one.traceparent,
    }
    assert all(("traceparent" in record.headers) == (record.subject == "one") for record in records)
    by_key = {record.key: record.partition for record in records}
    assert all(record.partition == by_key[record.key] for record in records)
    assert by_key["acme:1"] == murmur2(b"acme:1") % 6
    assert by_key["acme:zoë"] == murmur2("acme:zoë".encode()) % 6


def murmur2(data: bytes) -> int:
    """Java's default partitioner, written from its definition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if tail := data[len(data) - len(data) % 4 :]:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


@pytest.mark.parametrize("order", ["commit", "strict"])
def test_one_transaction_held_open(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, order: Order
) -> None:
    name = topic()
    with (
        service.connect(autocommit=False) as holder,
        service.connect() as writer,
        relaying(order),
        Follower(infra.kafka_bootstrap, name) as follower,
    ):
        write(holder, name, "held")
        write(writer, name, "free")
        if order == "commit":
            follower.see("free")
        else:
            follower.poll(0.7)
            assert follower.subjects() == []
        holder.commit()
        follower.take(2)
        follower.poll(0.2)
        assert follower.subjects() == (["free", "held"] if order == "commit" else ["held", "free"])


def test_a_crash_between_sending_and_storing_the_position_repeats_and_loses_nothing(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second move of the position fails: its slice is sent again. First deliveries stay in order per key."""
    name = topic(3)
    move, calls = Positions.move, 0

    def failing(self: Positions, position: Position, refused: "list[tuple[Row, str]]") -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise RuntimeError("crashed before the position was stored")
        move(self, position, refused)

    monkeypatch.setattr(Positions, "move", failing)
    fill(service, name, 12_000, keys=20)
    with relaying(), Follower(infra.kafka_bootstrap, name, 3) as follower:
        follower.until(lambda seen: len(set(seen.subjects())) == 12_000)
        wait_for(lambda: metric(service, "published_total") == 12_000)
        follower.poll(0.3)
    assert metric(service, "outages_total", resource="relay") >= 1
    assert len(follower.records) > 12_000
    for key in {record.key for record in follower.records}:
        first = [int(subject) for subject in follower.firsts(key)]
        assert first == sorted(first)


def test_a_relay_killed_again_and_again_loses_nothing(
    service: Service, infra: Infra, topic: Callable[..., str]
) -> None:
    """kill -9 at random moments while it drains; per key the first deliveries stay in order."""

    def whole(seen: Follower) -> bool:
        return len(set(seen.subjects())) == 20_000

    name = topic(3)
    rng = random.Random(5)
    fill(service, name, 20_000, keys=20)
    with Follower(infra.kafka_bootstrap, name, 3) as follower:
        for _ in range(3):
            more = len(follower.records) + 1
            with relay_process(service, infra.kafka_bootstrap):
                follower.until(lambda seen, more=more: len(seen.records) >= more or whole(seen))  # type: ignore[misc]
                time.sleep(rng.uniform(0, 0.1))
        with relay_process(service, infra.kafka_bootstrap):
            follower.until(whole, 30)
    for key in {record.key for record in follower.records}:
        first = [int(subject) for subject in follower.firsts(key)]
        assert first == sorted(first)


def test_a_refused_record_is_set_aside_and_its_successors_keep_their_order(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, kafka_admin: AdminClient
) -> None:
    """A topic that takes small records only; all of one key, so that order is visible. Then it is sent again."""
    name = topic(1, {"max.message.bytes": "20000"})
    with service.connect() as writer:
        batch = [envelope(name, str(number)) for number in range(40)]
        batch.insert(20, envelope(name, "too large", payload=os.urandom(50_000)))
        writer.execute(outbox.INSERT, outbox.parameters(batch))
        with relaying(), Follower(infra.kafka_bootstrap, name) as follower:
            follower.take(40)
            wait_for(lambda: metric(service, "refused_total") == 1)
            write(writer, name, "after")
            follower.see("after")
            assert follower.subjects() == [*map(str, range(40)), "after"]
            refused = service.execute("SELECT seq, subject, length(payload), error FROM outbox_refused")
            assert [(row[1], row[2]) for row in refused] == [("too large", 50_000)]
            assert "MSG_SIZE_TOO_LARGE" in refused[0][3]

            resource = ConfigResource(ResourceType.TOPIC, name)
            resource.add_incremental_config(
                ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
            )
            kafka_admin.incremental_alter_configs([resource])[resource].result(10)
            assert send_again(service, [row[0] for row in refused]) == 1
            assert len(follower.see("too large").value) == 50_000
    assert service.execute("SELECT count(*) FROM outbox_refused") == [(0,)]


def send_again(service: Service, seqs: list[int]) -> int:
    async def run() -> int:
        async with await psycopg.AsyncConnection.connect(service.conninfo, autocommit=True) as connection:
            return await outbox.send_again(connection, seqs)

    return asyncio.run(run())


def test_small_records_are_not_refused_for_their_company(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    """Together they are far above what the topic takes as one set, each alone is not. Several rounds, whose last set
    would be small enough while those before it are refused: that would turn the order round."""
    name = topic(1, {"max.message.bytes": "20000"})
    wanted: list[str] = []
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        for size in range(88, 118, 2):
            batch = [envelope(name, f"{size}/{number}", payload=os.urandom(1500)) for number in range(size)]
            writer.execute(outbox.INSERT, outbox.parameters(batch))
            wanted += [one.subject for one in batch]
            follower.take(len(wanted))
    assert follower.subjects() == wanted
    assert service.execute("SELECT count(*) FROM outbox_refused") == [(0,)]


def test_a_limit_lowered_while_the_relay_runs_refuses_nothing_that_fits(
    service: Service,
    infra: Infra,
    topic: Callable[..., str],
    relaying: Start,
    kafka_admin: AdminClient,
) -> None:
    """The relay's sets of records are suddenly too large as a whole: their members are tried one by one."""
    name = topic(1)
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        write(writer, name, "first")
        follower.take(1)
        resource = ConfigResource(ResourceType.TOPIC, name)
        resource.add_incremental_config(
            ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
        )
        kafka_admin.incremental_alter_configs([resource])[resource].result(10)
        batch = [envelope(name, str(number), payload=os.urandom(1500)) for number in range(30)]
        writer.execute(outbox.INSERT, outbox.parameters(batch))
        follower.take(31)
        write(writer, name, "last")
        follower.see("last")
    assert sorted(follower.subjects()) == sorted(["first", "last", *map(str, range(30))])
    assert service.execute("SELECT count(*) FROM outbox_refused") == [(0,)]


def test_rows_for_a_topic_that_does_not_exist_are_set_aside(
    service: Service,
    infra: Infra,
    topic: Callable[..., str],
    relaying: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(destinations, "GRACE_SECONDS", 0.5)
    name = topic()
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        write(writer, name, "before")
        write(writer, f"{name}-missing", "nowhere")
        write(writer, name, "after")
        follower.take(2)
        assert follower.subjects() == ["before", "after"]
        wait_for(lambda: metric(service, "refused_total") == 1)
    ((subject, error),) = service.execute("SELECT subject, error FROM outbox_refused")
    assert subject == "nowhere"
    assert "UNKNOWN_TOPIC" in error


def test_a_topic_that_appears_within_the_grace_gets_its_rows(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    name = f"late-{service.name}"
    with service.connect() as writer, relaying():
        write(writer, name, "early bird")
        time.sleep(0.5)
        topic(name=name)
        with Follower(infra.kafka_bootstrap, name) as follower:
            follower.see("early bird")


def test_a_ring_wakes_the_sleeper(service: Service, infra: Infra, topic: Callable[..., str], relaying: Start) -> None:
    """Far faster than the fallback poll, which is switched off here; and awake it is not rung."""
    name = topic()
    with (
        pytest.MonkeyPatch.context() as patch,
        service.connect() as writer,
        service.connect() as listener,
        Follower(infra.kafka_bootstrap, name) as follower,
    ):
        patch.setattr("messaging.term.FALLBACK_POLL", 1.5)
        listener.execute("LISTEN outbox")
        with relaying():
            for number in range(5):
                wait_for(lambda: asleep(service))
                write(writer, name, str(number))
                sent = time.monotonic()
                assert follower.see(str(number)).at - sent < 1.0
            rings = len(list(listener.notifies(timeout=0.1)))
            assert rings == 5
            with service.connect(autocommit=False) as busy:

                def saw_it_awake() -> bool:
                    # It may have fallen asleep again between the two writes.
                    busy.rollback()
                    write(writer, name, "wake up")
                    write(busy, name, "keeps it awake")
                    return keeps_awake(service, busy)

                wait_for(saw_it_awake)
                list(listener.notifies(timeout=0.1))
                for number in range(5, 30):
                    write(writer, name, str(number))
                follower.see("29")
                assert list(listener.notifies(timeout=0.2)) == []
                assert not asleep(service)
                busy.rollback()
            wait_for(lambda: asleep(service))


@pytest.mark.parametrize("seed", range(6))
def test_no_wake_up_is_ever_lost(service: Service, seed: int) -> None:
    """A model of the lock protocol: three writers and the relay's own parts, one step at a time in random order.

    Whenever the relay is asleep after its last read, and a committed row is unread, the bell must ring.
    """
    rng = random.Random(seed)
    writers = [service.connect(autocommit=False) for _ in range(3)]
    checked = 0
    with service.connect() as connection:
        bell, cursor = Bell(connection), service.cursor(connection, "commit")
        sleeping, pending, unread = False, [0, 0, 0], 0
        try:
            for step in range(500):
                at = rng.randrange(6)
                if at < 3 and rng.random() < 0.4:
                    write(writers[at], "t", f"{step}")
                    pending[at] += 1
                elif at < 3:
                    unread += pending[at] if (commit := rng.random() < 0.8) else 0
                    writers[at].commit() if commit else writers[at].rollback()
                    pending[at] = 0
                elif not sleeping:
                    if rng.random() < 0.5:
                        assert len(drain(cursor)) == unread
                        unread = 0
                    elif bell.fall_asleep():
                        sleeping = True
                        # The read that follows falling asleep may itself come late: writers go on in between.
                        if rng.random() < 0.5:
                            at = rng.randrange(3)
                            write(writers[at], "t", f"{step}")
                            writers[at].commit()
                            unread += pending[at] + 1
                            pending[at] = 0
                        assert len(drain(cursor)) == unread
                        unread = 0
                elif unread:
                    assert bell.wait(5.0), "asleep, rows committed, and nobody rang"
                    checked += 1
                    bell.wake_up()
                    sleeping = False
        finally:
            for writer in writers:
                writer.close()
    assert checked > 5


def test_an_idle_relay_looks_seldom(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No spinning: asleep it reads about four times a second, in however many seconds."""
    reads: list[float] = []
    read = Cursor.next

    def counted(self: Cursor) -> Slice:
        reads.append(time.monotonic())
        return read(self)

    monkeypatch.setattr(Cursor, "next", counted)
    name = topic()
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        write(writer, name, "one")
        follower.see("one")
        wait_for(lambda: asleep(service))
        reads.clear()
        started = time.monotonic()
        time.sleep(1.5)
        elapsed = time.monotonic() - started
    assert 1 <= len([at for at in reads if at < started + elapsed]) <= 6 * elapsed


def test_kafka_away_and_back(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away at the start, away in the middle: nothing lost, order kept, the position does not run ahead."""
    monkeypatch.setattr("messaging.backlog.STALL_SECONDS", 0.5)
    name = topic(2)
    fill(service, name, 12_000, keys=10)
    proxy = Proxy(infra.kafka_bootstrap)
    proxy.cut()
    try:
        with (
            service.connect() as writer,
            relaying(bootstrap=proxy.address) as relay,
            Follower(infra.kafka_bootstrap, name, 2) as follower,
        ):
            wait_for(lambda: relay.leading)
            time.sleep(1.2)
            beaten = "SELECT beat_at > since + interval '0.4 s' FROM relay_leader"
            assert service.execute(beaten) == [(True,)], "no heartbeat while it waits for Kafka"
            proxy.heal()
            follower.take(12_000)
            wait_for(lambda: asleep(service))
            confirmed = position(service)
            proxy.cut()
            for number in range(12_000, 12_100):
                write(writer, name, str(number), key=f"acme:{number % 10}")
            wait_for(lambda: metric(service, "outages_total", resource="kafka") == 1)
            wait_for(lambda: metric(service, "backlog") >= 100)
            assert position(service) == confirmed
            assert relay.leading
            assert relay.healthy()
            wait_for(lambda: metric(service, "oldest_seconds") > 0.4)
            proxy.heal()
            follower.until(lambda seen: len(set(seen.subjects())) == 12_100)
            wait_for(lambda: position(service) != confirmed)
            wait_for(lambda: metric(service, "backlog") == 0)
    finally:
        proxy.close()
    for key in {record.key for record in follower.records}:
        first = [int(subject) for subject in follower.firsts(key)]
        assert first == sorted(first)


def position(service: Service) -> "list[tuple[object, ...]]":
    return service.execute("SELECT prev::text, cur::text, after_seq, version FROM relay_position")


def test_postgres_away_and_back(service: Service, infra: Infra, topic: Callable[..., str], relaying: Start) -> None:
    """The relay's connections are cut and refused for a while, as in a restart: it comes back by itself."""
    name = topic()
    proxy = Proxy(host_of(service.conninfo), kafka=False)
    host, port = proxy.address.split(":")
    try:
        with (
            service.connect() as writer,
            relaying(conninfo=make_conninfo(service.conninfo, host=host, port=port)) as relay,
            Follower(infra.kafka_bootstrap, name) as follower,
        ):
            write(writer, name, "before")
            follower.see("before")
            proxy.cut()
            write(writer, name, "meanwhile")
            wait_for(lambda: metric(service, "outages_total", resource="database") >= 2)
            assert metric(service, "outages_total", resource="database") < 20
            assert relay.healthy()
            assert not relay.leading
            proxy.heal()
            follower.see("meanwhile")
            assert metric(service, "leader") == 1
    finally:
        proxy.close()


def test_a_killed_backend_is_ridden_out(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    name = topic()
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        for number in range(3):
            write(writer, name, str(number))
            follower.see(str(number))
            killed = service.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'relay-%'"
            )
            assert killed == [(True,)]
        write(writer, name, "last")
        follower.see("last")
    assert follower.firsts() == ["0", "1", "2", "last"]


def test_a_fatal_producer_error_builds_a_new_producer(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    built: list[Publisher] = []
    init = Publisher.__init__

    def remembered(self: Publisher, *arguments: object) -> None:
        built.append(self)
        init(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Publisher, "__init__", remembered)
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        write(writer, name, "before")
        follower.see("before")
        built[0]._on_error(KafkaError(KafkaError._FATAL, "made up", True))
        write(writer, name, "after")
        follower.see("after")
        wait_for(lambda: len(built) == 2)
    assert metric(service, "outages_total", resource="kafka") == 1


def test_an_error_in_the_middle_of_a_large_difference_is_ridden_out(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Postgres is already reading the next slice: the connection is given up, the walk goes on where it was."""
    name = topic()
    send, calls = Publisher.send, 0

    def failing(self: Publisher, rows: "list[Row]") -> Batch:
        nonlocal calls
        calls += 1
        if calls in (2, 4):
            raise KafkaException(KafkaError(KafkaError._FATAL, "made up", True))
        return send(self, rows)

    monkeypatch.setattr(Publisher, "send", failing)
    fill(service, name, 24_000, keys=5)
    with relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        follower.until(lambda seen: len(set(seen.subjects())) == 24_000)
        wait_for(lambda: metric(service, "backlog") == 0)
    assert metric(service, "outages_total", resource="kafka") == 2
    assert [int(subject) for subject in follower.firsts()] == list(range(24_000))


def test_an_error_that_is_not_the_records_fault_skips_nothing(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery report with a passing error: the slice is sent again from the stored position."""
    name = topic()
    report, failed = Batch.report, False

    def failing_once(self: Batch, row: Row, error: KafkaError | None, message: Message | None) -> None:
        nonlocal failed
        if not failed:
            failed = True
            error = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        report(self, row, error, message)

    monkeypatch.setattr(Batch, "report", failing_once)
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        write(writer, name, "one", "two")
        follower.until(lambda seen: seen.subjects().count("two") == 2)
    assert follower.firsts() == ["one", "two"]
    assert service.execute("SELECT count(*) FROM outbox_refused") == [(0,)]


def test_a_position_moved_by_somebody_else_is_read_again(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    """Compare-and-set: the leader whose position was changed under it starts over from the stored one."""
    name = topic()
    with service.connect() as writer, relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        write(writer, name, "one")
        follower.see("one")
        wait_for(lambda: position(service)[0][3] == 1)
        service.execute("UPDATE relay_position SET version = version + 10, prev = '1:1:'")
        write(writer, name, "two")
        follower.until(lambda seen: seen.subjects().count("one") == 2)
        follower.see("two")
        wait_for(lambda: int(str(position(service)[0][3])) > 11)
    assert follower.firsts() == ["one", "two"]


def test_only_the_last_reader_of_the_position_may_move_it(service: Service) -> None:
    """Also when the row lies where the loser left it."""
    with service.connect() as one, service.connect() as two:
        winner, loser = Positions(one, "r"), Positions(two, "r")
        assert winner.load() == loser.load() == Position("1:1:")
        winner.move(Position("5:5:"))
        with pytest.raises(LostLead):
            loser.move(Position("9:9:"))
        loser._place = winner._place
        with pytest.raises(LostLead):
            loser.move(Position("9:9:"))
        service.execute("UPDATE relay_position SET moved_at = clock_timestamp()")
        winner.move(Position("6:6:"))
        assert Positions(two, "r").load() == Position("6:6:")


def test_another_clusters_position_is_refused_with_a_remedy_that_works(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    name = topic()
    with service.connect() as writer:
        write(writer, name, "old")
    with relaying():
        wait_for(lambda: metric(service, "published_total") == 1)
    service.execute("UPDATE relay_position SET system_identifier = system_identifier + 1")
    with service.connect() as writer:
        write(writer, name, "new")
    with relaying() as relay:
        wait_for(lambda: relay.failure is not None)
        assert not relay.healthy()
        assert "relay_adopt" in str(relay.failure)
    with service.connect() as app, pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("SELECT relay_adopt(%s, now())", [service.name])
    assert service.execute("SELECT relay_adopt(%s, now() - interval '1 hour')", service.name) == [(2,)]
    with relaying() as relay, Follower(infra.kafka_bootstrap, name) as follower:
        follower.until(lambda seen: seen.subjects().count("old") == 2)
        follower.see("new")
        assert relay.healthy()


def test_a_full_outbox_refuses_writers_until_it_drains(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    name = topic()
    proxy = Proxy(infra.kafka_bootstrap)
    try:
        with (
            service.connect() as writer,
            relaying(bootstrap=proxy.address, limit=100),
            Follower(infra.kafka_bootstrap, name) as follower,
        ):
            write(writer, name, "first")
            follower.see("first")
            proxy.cut()

            def accepts(text: str) -> bool:
                try:
                    with outbox.refusing():
                        write(writer, name, text)
                except OutboxFull:
                    return False
                return True

            accepted = next(number for number in range(400) if not accepts(str(number)))
            assert 80 <= accepted <= 101
            proxy.heal()
            follower.take(accepted + 1)
            wait_for(lambda: accepts("again"))
            follower.see("again")
    finally:
        proxy.close()


def test_stopping_while_kafka_is_away(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up after a bounded time, whatever it was waiting for, and the next relay sends the rows."""
    monkeypatch.setattr("messaging.term.DRAIN_SECONDS", 0.5)
    known, unknown = topic(), topic()
    proxy = Proxy(infra.kafka_bootstrap)
    try:
        for name in (known, unknown):
            with service.connect() as writer, relaying(bootstrap=proxy.address) as relay:
                if name == known:
                    write(writer, name, "before")
                    wait_for(lambda: metric(service, "published_total") >= 1)
                proxy.cut()
                write(writer, name, "waiting")
                wait_for(lambda: relay.leading)
                time.sleep(0.3)
                stopped_at = time.monotonic()
                assert relay.stop(10)
                assert time.monotonic() - stopped_at < 4
            proxy.heal()
    finally:
        proxy.close()
    with relaying():
        for name in (known, unknown):
            with Follower(infra.kafka_bootstrap, name) as follower:
                follower.see("waiting")


def test_an_old_writer_is_named(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever it is on this cluster: at least as old as ours, with a log line and the gauge."""
    monkeypatch.setattr(watchdog, "ALARM_SECONDS", 0.2)
    with service.connect() as connection, service.connect(autocommit=False) as holder:
        dog = watchdog.Watchdog(connection, service.name)
        write(holder, "t", "held")
        time.sleep(0.3)
        with capture_logs() as logs:
            dog.look()
            dog.look()
        (alarm,) = [line for line in logs if line["event"] == "relay.old_writer"]
        assert alarm["age_seconds"] >= 0.3
        assert alarm["holder"]
        assert alarm["database"]
        gauge = REGISTRY.get_sample_value("workbot_oldest_writer_seconds", {"relay": service.name})
        assert gauge is not None
        assert gauge >= 0.3


@pytest.mark.parametrize("kind", ["prepared transaction", "backend"])
def test_commit_goes_on_past_whom_nobody_ends_and_the_alarm_names_them(
    service: Service,
    infra: Infra,
    topic: Callable[..., str],
    relaying: Start,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """An orphaned prepared transaction that holds an event, and an open writer in another database."""
    monkeypatch.setattr(watchdog, "ALARM_SECONDS", 0.2)
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.1)
    name = topic()
    with (
        holding(service, infra, name, kind) as (holder, database),
        service.connect() as writer,
        Follower(infra.kafka_bootstrap, name) as follower,
        capture_logs() as logs,
        relaying(),
    ):
        for number in range(5):
            write(writer, name, str(number))
            follower.see(str(number))
        # On a cluster that others use too, ours may have to become the oldest first.
        wait_for(lambda: any(line.get("holder") == holder for line in list(logs)))
        write(writer, name, "5")
        follower.see("5")
    alarm = next(line for line in logs if line.get("holder") == holder)
    assert (alarm["event"], alarm["log_level"], alarm["database"]) == ("relay.old_writer", "warning", database)
    assert alarm["age_seconds"] >= 0.2
    with relaying(), Follower(infra.kafka_bootstrap, name) as follower:
        last = ["held"] if kind == "prepared transaction" else []
        follower.take(6 + len(last))
        assert follower.firsts() == [*map(str, range(6)), *last]


@contextmanager
def holding(service: Service, infra: Infra, topic: str, kind: str) -> Iterator[tuple[str, str]]:
    """An open transaction that is ended only with the block; what the alarm calls it, and its database."""
    if kind == "backend":
        with psycopg.connect(infra.admin_conninfo) as stranger:
            stranger.execute("SELECT pg_current_xact_id()")
            yield f"backend {stranger.info.backend_pid}", "postgres"
            stranger.rollback()
        return
    name = f"orphan-{service.name}"
    with closing(service.connect(autocommit=False)) as doomed:
        doomed.tpc_begin(doomed.xid(1, name, ""))
        write(doomed, topic, "held")
        doomed.tpc_prepare()
    try:
        ((gid,),) = service.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        yield f"prepared transaction {gid}", service.name
    finally:
        with service.connect() as resolver:
            (orphan,) = [xid for xid in resolver.tpc_recover() if xid.database == service.name]
            resolver.tpc_commit(orphan)


def test_order_is_kept_while_writers_race(
    service: Service, infra: Infra, topic: Callable[..., str], relaying: Start
) -> None:
    """Eight writers change the same few aggregates under row locks: each aggregate's versions arrive in order."""
    name = topic(4)
    service.execute("CREATE TABLE thing (id int PRIMARY KEY, version int)")
    service.execute("GRANT ALL ON thing TO PUBLIC")
    service.execute("INSERT INTO thing SELECT i, 0 FROM generate_series(0, 4) AS i")

    def change(seed: int) -> None:
        rng = random.Random(seed)
        with service.connect() as connection:
            for _ in range(100):
                thing = rng.randrange(5)
                connection.execute(
                    """
                    WITH changed AS (UPDATE thing SET version = version + 1 WHERE id = %(thing)s RETURNING version)
                    INSERT INTO outbox (id, topic, key, type, version, payload, source, subject)
                    SELECT gen_random_uuid(), %(topic)s, %(key)s, 'thing.changed', 1, '', 'tests', version::text
                    FROM changed
                    """,
                    {"thing": thing, "topic": name, "key": f"acme:{thing}"},
                )

    with relaying(), Follower(infra.kafka_bootstrap, name, 4) as follower:
        threads = [threading.Thread(target=change, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        follower.take(800)
        for thread in threads:
            thread.join()
    for thing in range(5):
        versions = [int(record.subject) for record in follower.records if record.key == f"acme:{thing}"]
        assert versions == list(range(1, len(versions) + 1))
