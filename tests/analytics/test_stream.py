"""The loop, the tables' recovery and tidying, with faust's part played: rebalances and ends at chosen moments."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from psycopg import AsyncConnection, IsolationLevel
from structlog.testing import capture_logs

from messaging import telemetry
from messaging.codec import Codec
from messaging.erasure import digest
from messaging.message import Key
from messaging.policy import Backoff, Policy, Subscription
from messaging.producer import ConfirmedProducer
from services.analytics import engine, removing, store, tables, tidying
from services.analytics.counting import Value, progress
from services.analytics.cube import Cube
from services.analytics.erasing import Erasing
from services.analytics.gaps import Gaps
from services.analytics.lease import Lease
from services.analytics.stream import Counting
from services.analytics.tables import Counts
from services.analytics.tries import Tries
from tests.analytics.conftest import request
from tests.analytics.test_counting import KEEP, NOW, at_once, total
from tests.analytics.test_gaps import Kafka
from tests.fixtures.processes import Home

TOPIC = "t"


class Disk(dict[str, Value]):
    """A table; its writes reach Kafka when `confirm` is called, or at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.at_once = True
        self.unconfirmed: list[asyncio.Future[None]] = []

    look = dict.get

    def write(self, key: str, value: Value | None) -> "asyncio.Future[None]":
        if value is None:
            self.drop(key)
        else:
            self.writes += 1
            self[key] = value
        return self.end(key)

    def drop(self, key: str) -> None:
        self.writes += 1
        self.pop(key, None)

    def end(self, key: str) -> "asyncio.Future[None]":
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.at_once:
            sent.set_result(None)
        else:
            self.unconfirmed.append(sent)
        return sent

    async def everything(self) -> AsyncIterator[tuple[str, Value]]:
        for key, value in list(self.items()):
            yield key, value


class App:
    """What the loop sees of faust."""

    def __init__(self) -> None:
        self.consumer_generation_id = 1
        self.queue: deque[Any] = deque()
        self.arrived = asyncio.Event()
        self.acked: list[int] = []
        self.channel = SimpleNamespace(queue=SimpleNamespace(empty=lambda: not self.queue))

    def give(self, *offsets: int, sender: str = "ann", at: float = NOW) -> None:
        for offset in offsets:
            message = SimpleNamespace(
                topic=TOPIC,
                partition=0,
                offset=offset,
                key=f"acme:{sender}".encode(),
                value=sender.encode(),
                headers=[],
                timestamp=at,
                generation_id=self.consumer_generation_id,
            )
            ack = self.acked.append
            self.queue.append(SimpleNamespace(app=self, message=message, ack=lambda ack=ack, o=offset: ack(o)))
        self.arrived.set()

    def rebalance(self) -> None:
        """Queues are emptied, and nothing is given until the tables are up to date."""
        self.queue.clear()
        self.consumer_generation_id += 1

    def noack(self) -> "App":
        return self

    async def events(self) -> AsyncIterator[Any]:
        while True:
            while not self.queue:
                self.arrived.clear()
                await self.arrived.wait()
            yield self.queue.popleft()


@dataclass
class Known:
    """A codec that knows every event, and may be told to hang or to fail."""

    hanging: bool = False
    error: Exception | None = None
    asked: int = 0
    going_on: asyncio.Event = field(default_factory=asyncio.Event)

    def let_go(self) -> None:
        self.hanging = False
        self.going_on.set()

    def decode_known(self, headers: Any, value: Any, readers: Any) -> Any:
        return None

    async def decode(self, headers: Any, value: Any, readers: Any) -> Any:
        self.asked += 1
        if self.hanging:
            await self.going_on.wait()
        if self.error is not None:
            raise self.error
        return request(1, sender=value.decode())


@dataclass
class Post:
    """Takes dead letters."""

    letters: list[Any] = field(default_factory=list)

    async def send(self, *letter: Any) -> None:
        self.letters.append(letter)


@dataclass
class World:
    """All of it, on the real database."""

    app: App
    disk: Disk
    cube: Cube
    codec: Known
    post: Post
    lease: Lease
    erasing: Erasing
    home: Home
    share: float = 1.0

    def counting(self, committed: int = 0) -> Counting:
        """The loop of a new life."""

        sub = Subscription(
            "analytics", TOPIC, f"{TOPIC}.retry", f"{TOPIC}.dlq", Policy(), Backoff(3, 0.01, 0.01), self.share
        )
        tries = Tries(self.lease, [TOPIC])
        parts = cast(Codec, self.codec), frozenset[type[Any]](), tries, cast(ConfirmedProducer, self.post)
        counting = Counting([sub], *parts, self.erasing, self.cube, KEEP)
        counting.open(cast(Counts, self.disk), Gaps(self.disk.get, Kafka(committed, committed)))
        return counting

    def tries(self) -> list[tuple[object, ...]]:
        return self.home.rows("select at_offset, tries from event_tries order by 1")

    def total(self) -> int:
        return total(self.cube)


@pytest.fixture
async def world(home: Home, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("services.analytics.stream.time.time", lambda: NOW)
    cube, lease = Cube(), Lease(home.conninfo, "g")
    await lease.take()
    yield World(App(), Disk(), cube, Known(), Post(), lease, Erasing(lease, cube), home)
    await lease.close()


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def end(running: "asyncio.Task[None]") -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_a_rebalance_takes_away_is_counted_once_when_it_comes_again(world: World) -> None:
    """Two events are gathered, a third is on its way: the rebalance comes, and gives all three again."""
    running = asyncio.create_task(world.counting().run(world.app))
    async with world.erasing.turn:
        world.app.give(0, 1)
        await asyncio.sleep(0.1)  # they are in hand, and wait for their turn
        world.app.rebalance()
    await eventually(lambda: not world.app.queue)
    await asyncio.sleep(0.1)
    assert (world.total(), world.app.acked, world.tries()) == (0, [], [])
    world.app.give(0, 1, 2)
    await eventually(lambda: len(world.app.acked) == 3)
    assert (world.total(), world.app.acked, world.tries()) == (3, [0, 1, 2], [])
    await end(running)


async def test_records_gathered_before_a_rebalance_are_let_go(world: World) -> None:
    class Interrupted(App):
        async def events(self) -> AsyncIterator[Any]:
            self.give(0, 1)
            yield self.queue.popleft()
            self.rebalance()
            self.give(0, 1)
            while self.queue:
                yield self.queue.popleft()

    app = Interrupted()
    await world.counting().run(app)
    assert (world.total(), app.acked) == (2, [0, 1])


async def test_the_same_record_twice_in_a_batch_is_counted_once(world: World) -> None:
    world.app.give(0, 0, 1)
    running = asyncio.create_task(world.counting().run(world.app))
    await eventually(lambda: len(world.app.acked) == 3)
    assert (world.total(), world.tries()) == (2, [])
    await end(running)


async def test_ends_while_a_server_hangs_are_not_charged(world: World) -> None:
    """Three lives are ended, as by SIGTERM, while the registry does not answer. The fourth counts."""
    world.codec.hanging = True
    for life in range(1, 4):
        app = App()
        app.give(0, 1)
        counting = world.counting()
        running = asyncio.create_task(counting.run(app))
        await eventually(lambda life=life: world.codec.asked == life)
        await end(running)
        await counting.pay()
        assert world.tries() == [(0, 0), (1, 0)]
    world.codec.hanging = False
    world.app.give(0, 1)
    running = asyncio.create_task(world.counting().run(world.app))
    await eventually(lambda: world.app.acked == [0, 1])
    assert (world.total(), world.post.letters) == (2, [])
    await end(running)


async def test_a_loop_that_could_not_be_ended_in_time_is_not_charged_either(world: World) -> None:
    """As when the app cannot stop because Kafka is away."""
    world.codec.hanging = True
    world.app.give(0)
    counting = world.counting()
    running = asyncio.create_task(counting.run(world.app))
    await eventually(lambda: world.codec.asked == 1)
    await counting.pay()
    assert world.tries() == [(0, 0)]
    await end(running)


async def test_tries_of_another_life_are_not_given_back(world: World) -> None:
    """Two events are suspects. Only the one that was begun in this life gets its try back."""
    for offset in (0, 1):
        world.home.change("insert into event_tries values ('t', 0, %s, 2)", offset)
    world.codec.hanging = True
    world.app.give(0, 1)
    counting = world.counting()
    running = asyncio.create_task(counting.run(world.app))
    await eventually(lambda: world.codec.asked == 1)
    assert world.tries() == [(0, 3), (1, 2)]
    await end(running)
    await counting.pay()
    assert world.tries() == [(0, 2), (1, 2)]


@pytest.mark.parametrize(("fault", "tries"), [("kafka", 0), ("its own", 1)])
async def test_only_an_end_that_no_event_can_be_at_fault_for_gives_back(world: World, fault: str, tries: int) -> None:
    """Kafka did not take the counts in time; or they cannot be written at all."""
    from aiokafka.errors import KafkaTimeoutError

    error = KafkaTimeoutError() if fault == "kafka" else ValueError("cannot be written")
    world.disk.at_once = False
    world.app.give(0)
    counting = world.counting()
    running = asyncio.create_task(counting.run(world.app))
    await eventually(lambda: world.disk.unconfirmed)
    for sent in world.disk.unconfirmed:
        sent.set_exception(error)
    with pytest.raises(type(error)):
        await running
    await counting.pay()
    assert world.tries() == [(0, tries)]


@pytest.mark.parametrize(("tries", "reason", "asked"), [(3, None, 1), (6, None, 0), (3, "killed_its_process", 0)])
async def test_what_was_settled_gets_no_letter(world: World, tries: int, reason: str | None, asked: int) -> None:
    """Its process ended between counting (or its letter) and settling, thrice."""
    world.disk[progress(TOPIC, 0)] = {"o": 4}
    statement = "insert into event_tries (topic, partition, at_offset, tries, reason, error)"
    world.home.change(statement + " values ('t', 0, 4, %s, %s, %s)", tries, reason, reason)
    world.app.give(4)
    running = asyncio.create_task(world.counting(committed=4).run(world.app))
    await eventually(lambda: world.app.acked == [4])
    assert (world.post.letters, world.tries(), world.codec.asked) == ([], [], asked)
    await end(running)


async def test_an_event_that_was_never_settled_gets_its_letter(world: World) -> None:
    world.home.change("insert into event_tries values ('t', 0, 0, 3)")
    world.app.give(0)
    running = asyncio.create_task(world.counting().run(world.app))
    await eventually(lambda: world.app.acked == [0])
    assert (len(world.post.letters), world.tries(), world.codec.asked) == (1, [], 0)
    await end(running)


async def test_a_blown_fuse_is_told_and_shown_until_an_event_passes(world: World) -> None:
    def shown() -> float:
        return telemetry.CONSUMER_PAUSED.labels("analytics")._value.get()

    world.share = 0.1
    world.codec.error = RuntimeError("a bad deploy")
    for offset in range(12):
        world.app.give(offset, sender=f"s{offset}")
    running = asyncio.create_task(world.counting().run(world.app))
    with capture_logs() as logs:
        await eventually(lambda: sum(one["event"] == "fuse.blown" for one in logs) >= 2)
    assert {one["log_level"] for one in logs if one["event"] == "fuse.blown"} == {"error"}
    assert shown() == 1
    world.codec.error = None
    await eventually(lambda: len(world.app.acked) == 12)
    assert shown() == 0
    await end(running)


async def test_a_cube_is_made_anew_when_something_was_written_meanwhile() -> None:
    class Busy(Disk):
        async def everything(self) -> AsyncIterator[tuple[str, Value]]:
            for key, value in list(self.items()):
                yield key, value
                if self.writes < 3:
                    self.write(_key(self.writes), {"n": 1, "o": 1})

    disk = Busy()
    disk.write(_key(99), {"n": 1, "o": 1})
    cube = await engine.made_of(cast(Counts, disk))
    assert cube.keys == len(disk) == 3


class LongWalk(Disk):
    """A table that is long to go through: the walk rests at each key until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.walks = 0
        self.go = asyncio.Event()

    async def everything(self) -> AsyncIterator[tuple[str, Value]]:
        self.walks += 1
        for key, value in list(self.items()):
            await self.go.wait()
            yield key, value


async def test_an_erasures_walk_holds_up_nobody_but_what_its_sender_does_afterwards(world: World) -> None:
    disk = world.disk = LongWalk()
    running = asyncio.create_task(world.counting().run(world.app))
    world.app.give(0, 1, sender="ann")
    world.app.give(2, sender="bob")
    await eventually(lambda: world.app.acked == [0, 1, 2])
    owner, moment = digest(Key("acme", "ann")), NOW + 10
    world.home.change("insert into erasures values (%s, to_timestamp(%s))", owner, moment)
    world.home.change("insert into count_erasures (owner, asked_at) values (%s, now())", owner)
    erasing = asyncio.create_task(world.erasing.run(cast(Counts, disk)))
    await eventually(lambda: disk.walks)
    # The walk is under way. Of ann nothing is counted that is from before the moment; bob is.
    world.app.give(3, sender="ann", at=moment)
    world.app.give(4, sender="bob", at=moment + 1)
    await eventually(lambda: world.app.acked == [0, 1, 2, 3, 4])
    assert counts(world) == {"ann": 2, "bob": 2}
    world.app.give(5, sender="ann", at=moment + 1)
    await asyncio.sleep(0.3)
    assert (world.app.acked[-1], erasing.done()) == (4, False)
    disk.go.set()
    await eventually(lambda: world.app.acked[-1] == 5)
    await erasing
    assert counts(world) == {"ann": 1, "bob": 2}
    assert world.home.rows("select keys from count_erasures where done_at is not null") == [(3,)]
    assert disk.walks == 1
    await end(running)


async def test_a_batch_under_way_does_not_put_erased_counts_back(world: World) -> None:
    """It was begun before anybody asked, and ends after the counts were to go."""
    world.codec.hanging = True
    world.app.give(0, 1)
    running = asyncio.create_task(world.counting().run(world.app))
    await eventually(lambda: world.codec.asked == 1)
    owner = digest(Key("acme", "ann"))
    world.home.change("insert into erasures values (%s, to_timestamp(%s))", owner, NOW + 10)
    world.home.change("insert into count_erasures (owner, asked_at) values (%s, now())", owner)
    erasing = asyncio.create_task(world.erasing.run(cast(Counts, world.disk)))
    await asyncio.sleep(0.3)
    assert not erasing.done()
    world.codec.let_go()
    await erasing
    assert world.app.acked == [0, 1]
    assert counts(world) == {}
    await end(running)


async def ask_for(world: World, mark: float | None) -> None:
    owner = digest(Key("acme", "ann"))
    if mark is not None:
        world.home.change("insert into erasures values (%s, to_timestamp(%s))", owner, mark)
    world.home.change("insert into count_erasures (owner, asked_at) values (%s, now())", owner)


async def test_an_erasure_that_broke_off_is_done_by_the_next_process(world: World) -> None:
    """Kafka refuses a tombstone: nothing has gone from this disk, and it is not noted as done."""
    running = asyncio.create_task(world.counting().run(world.app))
    world.app.give(0, 1)
    await eventually(lambda: world.app.acked == [0, 1])
    await end(running)
    await ask_for(world, NOW + 10)
    world.disk.at_once = False
    erasing = asyncio.create_task(world.erasing.run(cast(Counts, world.disk)))
    await eventually(lambda: len(world.disk.unconfirmed) == 3)
    assert (counts(world), len(world.disk)) == ({"ann": 2}, 4)
    for sent, outcome in zip(world.disk.unconfirmed, (None, OSError("away"), None), strict=True):
        sent.set_exception(outcome) if outcome else sent.set_result(None)
    with pytest.raises(OSError, match="away"):
        await erasing
    assert (counts(world), len(world.disk)) == ({"ann": 2}, 4)
    world.disk.at_once = True
    await Erasing(world.lease, world.cube).run(cast(Counts, world.disk))
    assert (counts(world), list(world.disk)) == ({}, [progress(TOPIC, 0)])
    assert world.home.rows("select keys from count_erasures where done_at is not null") == [(3,)]


async def test_who_tidies_at_the_same_time_takes_nothing_out_twice(world: World) -> None:
    running = asyncio.create_task(world.counting().run(world.app))
    world.app.give(0, 1)
    world.app.give(2, sender="bob")
    await eventually(lambda: world.app.acked == [0, 1, 2])
    await end(running)
    await ask_for(world, NOW + 10)
    world.disk.at_once = False
    erasing = asyncio.create_task(world.erasing.run(cast(Counts, world.disk)))
    await eventually(lambda: len(world.disk.unconfirmed) == 3)
    for key in [key for key in world.disk if key.endswith("ann")]:
        world.cube.apply(key, world.disk[key], None)
        world.disk.drop(key)
    for sent in world.disk.unconfirmed:
        sent.set_result(None)
    await erasing
    assert (counts(world), world.cube.keys) == ({"bob": 1}, 4)


async def test_who_is_to_go_without_a_mark_waits(world: World) -> None:
    """Marks are forgotten with time, perhaps before a process comes that takes the counts out."""
    disk = world.disk = LongWalk()
    disk[_key(1)] = {"n": 5, "o": 1}
    world.cube.apply(_key(1), None, disk[_key(1)])
    await ask_for(world, None)
    erasing = asyncio.create_task(world.erasing.run(cast(Counts, disk)))
    await eventually(lambda: disk.walks)
    running = asyncio.create_task(world.counting().run(world.app))
    world.app.give(0)
    await asyncio.sleep(0.3)
    assert (running.done(), world.app.acked) == (False, [])
    disk.go.set()
    await eventually(lambda: world.app.acked == [0])
    await erasing
    assert counts(world) == {"ann": 1}
    await end(running)


async def test_an_event_of_another_sender_than_its_keys_is_set_aside(world: World) -> None:
    """By its key it is held back, and by what it says it would be left out."""
    world.app.give(0, 1)
    world.app.queue[0].message.value = b"bob"
    running = asyncio.create_task(world.counting().run(world.app))
    await eventually(lambda: world.app.acked == [0, 1])
    assert counts(world) == {"ann": 1}
    ((_, _, _, headers),) = world.post.letters
    assert dict(headers)["workbot_dead_reason"] == b"other_owner"
    await end(running)


async def test_who_is_asked_for_after_the_look_is_asked_for_after_its_time(home: Home) -> None:
    """The snapshot is from the beginning of the transaction, as a prepared statement's is from when it is bound."""
    async with await AsyncConnection.connect(home.conninfo, autocommit=True) as conn:
        await conn.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with conn.transaction():
            await conn.execute("select from count_erasures")
            home.change("insert into count_erasures (owner, asked_at) values ('x', clock_timestamp())")
            asked, looked_at = await store.asked_to_erase(conn)
        assert asked == []
        (one,), later = await store.asked_to_erase(conn)
        assert looked_at < one.asked_at.timestamp() < later


def counts(world: World) -> dict[str, int]:
    found = at_once(world.cube.events("acme", "day", 0, 2**40, type_=None, sender=None))
    return {sender: sum(of.values()) for sender, of in found.items()}


async def test_tidying_does_not_wait_for_kafka_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, cube = Disk(), Cube()
    for start in range(7):
        disk[_key(start)] = {"n": 1, "o": 1}
    monkeypatch.setattr(removing, "AT_ONCE", 5)
    disk.at_once = False
    running = asyncio.create_task(tidying.tidy(cast(Counts, disk), cube, KEEP))
    for together, left in ((5, 7), (2, 2)):
        await eventually(lambda together=together: len(disk.unconfirmed) == together)
        # What Kafka does not know yet stays, for the next one to find.
        assert len(disk) == left
        for sent in disk.unconfirmed:
            sent.set_result(None)
        disk.unconfirmed.clear()
    await running
    assert not disk


def _key(start: int) -> str:
    return str(tables.Name(TOPIC, 0, ("minute", str(start * 60), "request.created", "acme", "ann")))


async def test_recovery_lets_the_fetch_under_way_end_before_it_seeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.15.3 waits up to a second for a fetch; what it brings belongs to the time before the seek."""
    assert tables.QUIET_SECONDS > 1.0
    monkeypatch.setattr(tables, "QUIET_SECONDS", 0.3)
    done: list[str] = []

    async def complete(self: Any, generation_id: int = 0) -> None:
        done.append("seek")

    async def recovered() -> None:
        done.append("cube")

    monkeypatch.setattr(tables.Recovery, "on_recovery_completed", complete)
    recovery = tables.QuietRecovery.__new__(tables.QuietRecovery)
    its_tables = tables.Tables.__new__(tables.Tables)
    its_tables.recovered = recovered
    recovery.tables = its_tables

    def stop_flow() -> None:
        done.append("stop")
        asyncio.get_running_loop().call_later(0.1, done.append, "fetch ends")

    recovery.app = cast(Any, SimpleNamespace(consumer=SimpleNamespace(stop_flow=stop_flow)))
    monkeypatch.setattr(recovery, "flush_buffers", lambda: done.append("flush"))
    await recovery.on_recovery_completed(1)
    assert done == ["stop", "fetch ends", "flush", "cube", "seek"]


@pytest.fixture
def records() -> Iterator[Any]:
    from aiokafka.consumer import fetcher

    before = fetcher.MemoryRecords
    yield fetcher
    fetcher.MemoryRecords = before


def test_another_client_than_the_one_it_was_written_for_is_refused(records: Any) -> None:
    from services.analytics import garbled

    garbled.install()
    records.MemoryRecords = object
    with pytest.raises(RuntimeError, match="garbled"):
        garbled.install()
