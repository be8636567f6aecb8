"""What each order of the relay promises about transactions that do not end in the order they began.

Read by the relay's own cursor, step by step: "now" is exact, without waiting for anything.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter as clock
from time import sleep

import psycopg
import pytest

from messaging import cursor as cursor_module
from messaging.cursor import Cursor, Order, Position
from tests.fixtures.outbox import Connection, Service, drain, fill, migrated, subjects, write
from tests.fixtures.stack import Database, Infra

BOTH = pytest.mark.parametrize("order", ["commit", "strict"])


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


@pytest.fixture
def sessions(service: Service) -> Iterator[list[Connection]]:
    """Three writers, each in a transaction of its own from its first statement on."""
    opened = [service.connect(autocommit=False) for _ in range(3)]
    yield opened
    for session in opened:
        session.close()


@pytest.fixture
def reader(service: Service) -> Iterator[Connection]:
    with service.connect() as connection:
        yield connection


def begin_writing(session: Connection) -> int:
    """Give the session's transaction its id before it touches the outbox."""
    row = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def read(cursor: Cursor, order: Order, count: int) -> list[str]:
    """What is there to read now, `count` rows. `strict` also waits for strangers: every writer of the cluster."""
    rows = drain(cursor)
    for _ in range(1000 if order == "strict" else 0):
        if len(rows) >= count:
            break
        sleep(0.005)
        rows += drain(cursor)
    return subjects(rows)


@BOTH
def test_one_transaction_held_open(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    """`commit` passes the open one; `strict` delivers nothing behind it, then both in order."""
    cursor = service.cursor(reader, order)
    write(sessions[0], "t", "held")
    write(sessions[1], "t", "free")
    sessions[1].commit()
    assert subjects(drain(cursor)) == (["free"] if order == "commit" else [])
    sessions[0].commit()
    rest = ["held"] if order == "commit" else ["held", "free"]
    assert read(cursor, order, len(rest)) == rest
    assert drain(cursor) == []


@BOTH
def test_a_lower_number_committed_after_a_higher_one(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    """The reader was there in between: an id cursor would never come back for the lower number."""
    cursor = service.cursor(reader, order)
    for round_number in range(20):
        late, early = sessions[0], sessions[1]
        write(late, "t", f"late {round_number}")
        write(early, "t", f"early {round_number}")
        early.commit()
        between = subjects(drain(cursor))
        late.commit()
        after = read(cursor, order, 2 - len(between))
        assert sorted(between + after) == [f"early {round_number}", f"late {round_number}"]


@BOTH
def test_a_newer_transaction_with_an_older_number(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    """The older transaction writes last: number and transaction id contradict each other."""
    cursor = service.cursor(reader, order)
    begin_writing(sessions[0])
    write(sessions[1], "t", "newer transaction, older number")
    sessions[1].commit()
    between = subjects(drain(cursor))
    write(sessions[0], "t", "older transaction, newer number")
    sessions[0].commit()
    between += read(cursor, order, 2 - len(between))
    assert between == ["newer transaction, older number", "older transaction, newer number"]


def two_updates_of_one_aggregate(service: Service, sessions: list[Connection]) -> None:
    """The older transaction gets the aggregate's row lock second, so its change comes second."""
    service.execute("CREATE TABLE thing (id int PRIMARY KEY, state text)")
    service.execute("GRANT ALL ON thing TO PUBLIC")
    service.execute("INSERT INTO thing VALUES (1, 'new')")
    older, newer = sessions[0], sessions[1]
    begin_writing(older)
    begin_writing(sessions[2])
    newer.execute("UPDATE thing SET state = 'first' WHERE id = 1")
    write(newer, "t", "first")
    newer.commit()
    older.execute("UPDATE thing SET state = 'second' WHERE id = 1")
    write(older, "t", "second")


@BOTH
def test_two_updates_of_one_aggregate_with_inverted_ids(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    cursor = service.cursor(reader, order)
    two_updates_of_one_aggregate(service, sessions)
    between = subjects(drain(cursor))
    sessions[2].rollback()
    sessions[0].commit()
    assert between == (["first"] if order == "commit" else [])
    assert between + read(cursor, order, 2 - len(between)) == ["first", "second"]


@BOTH
def test_what_strict_cannot_promise(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    """A third writer, unrelated, is open and its id lies between the two.

    `strict` cuts at that id: it may deliver the older transaction alone, whose change came second, and the newer one
    afterwards. It orders by when transactions began to write. `commit` keeps the order of the changes here too.
    """
    cursor = service.cursor(reader, order)
    two_updates_of_one_aggregate(service, sessions)
    sessions[0].commit()
    delivered = read(cursor, order, 1)
    assert delivered == (["first", "second"] if order == "commit" else ["second"])
    sessions[2].rollback()
    delivered += read(cursor, order, 1)
    assert delivered == (["first", "second"] if order == "commit" else ["second", "first"])


@BOTH
def test_a_writer_in_another_database(service: Service, infra: Infra, reader: Connection, order: Order) -> None:
    cursor = service.cursor(reader, order)
    with psycopg.connect(infra.admin_conninfo, application_name="elsewhere") as stranger:
        begin_writing(stranger)
        with service.connect() as writer:
            write(writer, "t", "ours")
        assert subjects(drain(cursor)) == (["ours"] if order == "commit" else [])
        stranger.rollback()
    rest = read(cursor, order, 1)
    assert rest == ([] if order == "commit" else ["ours"])


@BOTH
def test_an_orphaned_prepared_transaction(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    """`commit` goes on past it for ever and delivers its row once it is resolved; `strict` waits."""
    cursor = service.cursor(reader, order)
    name = f"orphan-{service.name}"
    sessions[0].tpc_begin(sessions[0].xid(1, name, ""))
    write(sessions[0], "t", "prepared")
    sessions[0].tpc_prepare()
    sessions[0].close()
    try:
        for number in range(3):
            write(sessions[1], "t", f"other {number}")
            sessions[1].commit()
            assert subjects(drain(cursor)) == ([f"other {number}"] if order == "commit" else [])
        holder = service.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND prepared <= clock_timestamp()"
        )
        assert len(holder) == 1
    finally:
        with service.connect() as resolver:
            (orphan,) = [xid for xid in resolver.tpc_recover() if xid.database == service.name]
            resolver.tpc_commit(orphan)
    rest = ["prepared"] if order == "commit" else ["prepared", "other 0", "other 1", "other 2"]
    assert read(cursor, order, len(rest)) == rest
    assert drain(cursor) == []


@BOTH
def test_rollback_leaves_nothing(
    service: Service, sessions: list[Connection], reader: Connection, order: Order
) -> None:
    """Whole transactions and savepoints alike; what a released savepoint wrote counts as its transaction's."""
    cursor = service.cursor(reader, order)
    write(sessions[0], "t", "undone")
    sessions[0].rollback()
    write(sessions[1], "t", "kept")
    with sessions[1].transaction():
        write(sessions[1], "t", "undone by savepoint")
        raise psycopg.Rollback
    with sessions[1].transaction():
        write(sessions[1], "t", "kept by savepoint")
    sessions[1].commit()
    assert read(cursor, order, 2) == ["kept", "kept by savepoint"]
    assert drain(cursor) == []


@BOTH
def test_a_large_difference_is_walked_in_order_and_resumed(
    service: Service, sessions: list[Connection], reader: Connection, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices by rows; a late low number in front; a reader that starts again in the middle of the walk."""
    monkeypatch.setattr(cursor_module, "SLICE_ROWS", 700)
    monkeypatch.setattr(cursor_module, "WALK", 1500)
    monkeypatch.setattr(cursor_module, "MEASURE", 400)
    write(sessions[0], "t", "late")
    fill(service, "t", 3000)
    cursor = service.cursor(reader, "commit")
    assert len(drain(cursor)) == 3000
    fill(service, "t", 5000)
    sessions[0].commit()
    wanted = ["late", *map(str, range(5000))]

    stored = cursor.position
    found: list[str] = []
    cursor = service.cursor(reader, order, stored)
    for _ in range(2_000):
        piece = cursor.next()
        assert len(piece.rows) <= 700
        found += subjects(piece.rows)
        if piece.rows and piece.end.cur is not None:
            cursor = service.cursor(reader, order, piece.end)
        if len(found) >= len(wanted):
            break
        sleep(0 if piece.more else 0.005)
    assert found == wanted
    assert drain(cursor) == []


def test_a_large_difference_is_measured_in_steps(
    service: Service, reader: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay's heartbeat goes on between them; what waits is known before the first row is sent."""
    monkeypatch.setattr(cursor_module, "SLICE_ROWS", 100)
    monkeypatch.setattr(cursor_module, "MEASURE", 250)
    steps: list[int] = []
    fill(service, "t", 2000)
    cursor = Cursor(reader, "commit", Position("1:1:"), lambda: steps.append(1))
    piece = cursor.next()
    assert (piece.rows, piece.more) == ([], True)
    assert len(steps) >= 2000 // 250
    assert cursor.known == 2000
    assert len(cursor.next().rows) == 100
    assert cursor.known == 1900


def test_a_slice_asked_for_ahead_is_the_next_one(
    service: Service, reader: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it is collected before it is needed; asked twice or for nothing, it does no harm."""
    monkeypatch.setattr(cursor_module, "SLICE_ROWS", 100)
    fill(service, "t", 1000)
    cursor = service.cursor(reader, "commit")
    found: list[str] = []
    cursor.ask()
    for step in range(30):
        piece = cursor.next()
        found += subjects(piece.rows)
        if step % 3 != 2:
            cursor.ask()
        if step % 3 == 1:
            cursor.collect()
            assert reader.execute("SELECT 1").fetchone() == (1,)
    assert found == [str(number) for number in range(1000)]


def test_a_slice_is_bounded_in_bytes(service: Service, reader: Connection) -> None:
    """Twelve payloads of the largest size come in slices of at most five, not all at once."""
    fill(service, "t", 12, size=900_000)
    cursor = service.cursor(reader, "commit")
    sizes = []
    while (piece := cursor.next()).rows or piece.more:
        sizes += [len(piece.rows)] if piece.rows else []
    assert sum(sizes) == 12
    assert max(sizes) <= cursor_module.SLICE_BYTES // 900_000 + 1


def test_a_batch_costs_the_same_behind_a_long_transaction(
    service: Service, sessions: list[Connection], reader: Connection
) -> None:
    """Rows delivered since the long transaction began are not looked at again: compared within this run."""
    cursor = service.cursor(reader, "commit")

    def cost() -> float:
        best = float("inf")
        for _ in range(10):
            fill(service, "t", 200)
            started = clock()
            assert len(drain(cursor)) == 200
            best = min(best, clock() - started)
        return best

    cost()
    without = cost()
    begin_writing(sessions[0])
    fill(service, "t", 60_000)
    assert len(drain(cursor)) == 60_000
    assert cost() < 3 * without + 0.002


def test_changing_the_order_loses_and_repeats_nothing(
    service: Service, sessions: list[Connection], reader: Connection
) -> None:
    cursor = service.cursor(reader, "commit")
    write(sessions[0], "t", "held")
    write(sessions[1], "t", "free")
    sessions[1].commit()
    assert subjects(drain(cursor)) == ["free"]
    cursor = service.cursor(reader, "strict", cursor.position)
    write(sessions[1], "t", "next")
    sessions[1].commit()
    assert drain(cursor) == []
    sessions[0].commit()
    assert read(cursor, "strict", 2) == ["held", "next"]
    cursor = service.cursor(reader, "commit", cursor.position)
    write(sessions[1], "t", "last")
    sessions[1].commit()
    assert subjects(drain(cursor)) == ["last"]


@dataclass
class Model:
    """Three sessions, some aggregates with row locks, and what ought to be read."""

    service: Service
    reader: Connection
    order: Order
    rng: random.Random
    sessions: list[Connection]
    written: list[list[tuple[int, str]]] = field(default_factory=lambda: [[], [], []])
    locked: dict[int, int] = field(default_factory=dict)
    committed: dict[int, list[str]] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    open_ids: dict[int, int] = field(default_factory=dict)
    read: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.cursor = self.service.cursor(self.reader, self.order)
        self.stored: list[Position] = [Position("1:1:")]

    def step(self) -> None:
        at = self.rng.randrange(3)
        action = self.rng.choices(["touch", "insert", "commit", "rollback", "read", "restart"], [1, 8, 4, 1, 5, 1])[0]
        if action == "touch":
            self.open_ids[at] = begin_writing(self.sessions[at])
        elif action == "insert":
            self.insert(at)
        elif action == "commit":
            self.finish(at, commit=True)
        elif action == "rollback":
            self.finish(at, commit=False)
        elif action == "read":
            self.take()
        else:
            self.cursor = self.service.cursor(self.reader, self.order, self.cursor.position)

    def insert(self, at: int) -> None:
        aggregate = self.rng.randrange(4)
        if self.locked.get(aggregate, at) != at:
            return
        self.locked[aggregate] = at
        self.open_ids[at] = begin_writing(self.sessions[at])
        self.sessions[at].execute("UPDATE thing SET state = state WHERE id = %s", [aggregate])
        texts = [f"{aggregate}/{self.count + extra}" for extra in range(self.rng.randint(1, 3))]
        self.count += len(texts)
        write(self.sessions[at], "t", *texts, key=f"acme:{aggregate}")
        self.written[at] += [(aggregate, text) for text in texts]
        self.ids.update(dict.fromkeys(texts, self.open_ids[at]))

    def finish(self, at: int, commit: bool) -> None:
        if commit:
            self.sessions[at].commit()
            for aggregate, text in self.written[at]:
                self.committed.setdefault(aggregate, []).append(text)
        else:
            self.sessions[at].rollback()
        self.written[at] = []
        self.open_ids.pop(at, None)
        self.locked = {aggregate: owner for aggregate, owner in self.locked.items() if owner != at}

    def take(self) -> None:
        rows = [(row[2], row[8]) for row in drain(self.cursor)]
        if self.order == "strict" and self.open_ids:
            assert all(self.ids[text] < min(self.open_ids.values()) for _, text in rows)
        self.read += rows
        if self.order == "commit":
            assert sorted(text for _, text in self.read) == sorted(chain(*self.committed.values()))

    def check(self) -> None:
        for at in range(3):
            self.finish(at, commit=True)
        for _ in range(1000):
            self.take()
            if len(self.read) >= sum(map(len, self.committed.values())):
                break
            sleep(0.005)
        texts = [text for _, text in self.read]
        assert len(texts) == len(set(texts)), "read twice"
        assert sorted(texts) == sorted(chain(*self.committed.values())), "lost or invented"
        if self.order == "commit":
            for aggregate, wanted in self.committed.items():
                assert [text for key, text in self.read if key == f"acme:{aggregate}"] == wanted


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_random_interleavings(
    service: Service,
    sessions: list[Connection],
    reader: Connection,
    order: Order,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every committed row exactly once, none invented; per aggregate in the order of its row lock (`commit`).

    Small slices, so that ordinary differences are walked; the cursor starts again now and then.
    """
    monkeypatch.setattr(cursor_module, "SLICE_ROWS", 3)
    monkeypatch.setattr(cursor_module, "WALK", 5)
    monkeypatch.setattr(cursor_module, "MEASURE", 2)
    service.execute("CREATE TABLE thing (id int PRIMARY KEY, state text)")
    service.execute("GRANT ALL ON thing TO PUBLIC")
    service.execute("INSERT INTO thing SELECT i, 'new' FROM generate_series(0, 3) AS i")
    model = Model(service, reader, order, random.Random(seed), sessions)
    for _ in range(150):
        model.step()
    model.check()
    assert model.count > 50
