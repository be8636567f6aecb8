"""Erasing a sender: their counts go from memory, disk and Kafka, and are not counted again."""

import asyncio
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from messaging import erasure as messaging_erasure
from messaging import migrate
from messaging.message import Key
from services.analytics import counting, erasing, erasure, store
from services.analytics.counting import Name
from tests.analytics.conftest import Counter, Place, Start, read, received, request, until
from tests.analytics.worker import HOLD
from tests.fixtures.outbox import Proxy
from tests.fixtures.processes import Home

ANN = Key("acme", "ann")


def erase(home: Home, owner: Key) -> int:
    """As `workbot erase` does; how many keys went."""

    async def run() -> dict[str, int]:
        conninfo = make_conninfo(home.admin, options=f"-c role={migrate.OWNER}")
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            assert await erasure.count(conn, owner) == {}
            at = await messaging_erasure.moment(conn, messaging_erasure.LEAD + timedelta(seconds=1))
            await erasure.mark(conn, owner, at)
            await erasure.ask(conn, owner)
            while await messaging_erasure.moment(conn) <= at:
                await asyncio.sleep(0.05)
            return await erasure.erase(conn, owner, at, lambda kind, more: None)

    return asyncio.run(run())[erasure.COUNTS]


def senders(counter: Counter) -> dict[str, int]:
    return {each["sender"]: each["count"] for each in counter.events().json()["senders"]}


def test_the_counts_of_one_sender_go_and_stay_away(place: Place, start: Start, home: Home, tmp_path: Path) -> None:
    """Bob and the other tenant's Ann keep theirs; across a restart, with the disk and without it; and what Ann does
    afterwards is counted anew."""
    place.send([received(1), request(1), received(2, sender="bob"), received(3, tenant="other")])
    place.send([read(1), read(2, sender="bob")])
    with start() as counter:
        until(lambda: (counter.total(), counter.total("other")) == (5, 1), counter)
        # Three types by three windows, and the time to read.
        assert erase(home, ANN) == 10
        assert senders(counter) == {"bob": 2}
        assert counter.events().json()["reading"]["count"] == 1
        assert counter.total("other") == 1
        assert erase(home, ANN) == 0

        # Read late, or again: not counted, and not in the way of what follows.
        before = (datetime.now(UTC) - timedelta(minutes=1)).isoformat().encode()
        place.send([request(2), request(3, sender="bob")], headers=[("ce_time", before)])
        until(lambda: place.committed() == 8, counter)
        assert senders(counter) == {"bob": 3}
        place.send([request(4)])
        until(lambda: senders(counter) == {"bob": 3, "ann": 1}, counter)

    left = {record.key(): record.value() for record in place.read_all(f"{place.group}-counts-changelog")}
    of_ann = [
        (Name.parse(json.loads(key)).rest, value)
        for key, value in left.items()
        if key is not None and counting.owner(json.loads(key)) == ANN
    ]
    assert {rest[2] for rest, value in of_ann if value is not None} == {"request.created"}

    shutil.rmtree(tmp_path / "tables")
    place.rewind()
    with start() as counter:
        until(lambda: place.committed() == 9, counter)
        assert senders(counter) == {"bob": 3, "ann": 1}
        assert counter.total("other") == 1


def test_who_asks_while_nobody_counts_is_told_so_and_it_is_done_later(
    place: Place, start: Start, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.send([request(1), request(2, sender="bob")])
    with start() as counter:
        until(lambda: counter.total() == 2, counter)
    monkeypatch.setattr(erasure, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(erasure.Pending, match="analytics: no process has taken the counts out"):
        erase(home, ANN)
    with start() as counter:
        until(lambda: counter.total() == 1, counter)
        assert senders(counter) == {"bob": 1}
    # It is remembered until the timer comes, whoever asked; and without a name.
    ((keys,),) = home.rows("select keys from count_erasures where done_at >= asked_at")
    assert keys == 3
    assert "ann" not in str(home.rows("select * from count_erasures"))

    async def look_and_forget() -> None:
        async with await psycopg.AsyncConnection.connect(home.conninfo, autocommit=True) as conn:
            for _ in range(2):
                assert await store.keys_erased(conn, erasing.digest(ANN)) == 3
            assert await store.forget_done_erasures(conn, 3600) == 0
            assert await store.forget_done_erasures(conn, 0) == 1

    asyncio.run(look_and_forget())
    assert home.rows("select * from count_erasures") == []


def test_what_happens_after_the_moment_is_counted_however_late_the_counts_go(
    place: Place, start: Start, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody counts while the sender is erased. Who starts then finds events from before and from after."""
    place.send([request(1), request(2, sender="bob")])
    with start() as counter:
        until(lambda: counter.total() == 2, counter)
    monkeypatch.setattr(erasure, "PATIENCE_SECONDS", 0.1)
    place.send([request(3)])
    with pytest.raises(erasure.Pending):
        erase(home, ANN)
    place.send([request(n) for n in range(4, 14)])
    with start() as counter:
        until(lambda: place.committed() == 13, counter)
        until(lambda: home.rows("select count(*) from count_erasures where done_at is null") == [(0,)], counter)
        assert senders(counter) == {"bob": 1, "ann": 10}


def test_it_goes_on_counting_meanwhile(place: Place, start: Start, home: Home, tmp_path: Path) -> None:
    """A stream of events, an erasure in its middle, which takes long to go through the table: Bob's are all counted,
    also in that time, Ann's only those of afterwards."""
    pairs = [request(n, sender=s) for n in range(20) for s in ("ann", "bob")]
    with start() as counter, ThreadPoolExecutor(1) as pool:
        place.send(pairs)
        until(lambda: senders(counter) == {"ann": 20, "bob": 20}, counter)
        (tmp_path / HOLD).touch()
        erased = pool.submit(erase, home, ANN)
        try:
            before = datetime.now(UTC).isoformat().encode()
            until(lambda: "analytics.erases" in counter.log.read_text(), counter)
            place.send(pairs, headers=[("ce_time", before)])
            until(lambda: senders(counter)["bob"] == 40, counter)
            assert senders(counter)["ann"] == 20
            until(lambda: home.rows("select now() > erased_at from erasures") == [(True,)], counter)
            place.send(pairs)
            # From before the moment, it is all read; from after it, Ann's first one waits.
            until(lambda: place.committed() >= 80, counter)
            assert not erased.done()
            assert "analytics.erased" not in counter.log.read_text()
            assert senders(counter)["ann"] == 20
        finally:
            (tmp_path / HOLD).unlink()
        assert erased.result(60) == 3
        until(lambda: place.committed() == 120, counter)
        assert senders(counter) == {"ann": 20, "bob": 60}


def test_counts_that_kafka_was_not_told_of_in_time_do_not_come_back(
    place: Place, start: Start, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka is away when the counts are to go, and the process is killed meanwhile. The next one has the disk; the
    one after it has lost that, and makes its tables of what Kafka has."""
    place.send([request(1), request(2, sender="bob")])
    kafka = Proxy(place.infra.kafka_bootstrap)
    monkeypatch.setattr(erasure, "PATIENCE_SECONDS", 0.1)
    try:
        with start(kafka_bootstrap=kafka.address) as counter:
            until(lambda: counter.total() == 2 and place.committed() == 2, counter)
            kafka.cut()
            with pytest.raises(erasure.Pending):
                erase(home, ANN)
            until(lambda: "analytics.erases" in counter.log.read_text(), counter)
            time.sleep(2)
            counter.kill()
    finally:
        kafka.close()
    with start() as counter:
        until(lambda: home.rows("select done_at is not null from count_erasures") == [(True,)], counter)
        assert senders(counter) == {"bob": 1}
    assert home.rows("select keys from count_erasures") == [(3,)]
    shutil.rmtree(tmp_path / "tables")
    with start() as counter:
        assert senders(counter) == {"bob": 1}
