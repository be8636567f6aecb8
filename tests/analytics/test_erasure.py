"""Erasing a sender: their counts go from memory, disk and Kafka, and are not counted again."""

import asyncio
import json
import shutil
import time
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
from tests.fixtures.processes import Home

ANN = Key("acme", "ann")


def erase(home: Home, owner: Key) -> int:
    """As `workbot erase` does; how many keys went."""

    async def run() -> dict[str, int]:
        conninfo = make_conninfo(home.admin, options=f"-c role={migrate.OWNER}")
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
            assert await erasure.count(conn, owner) == {}
            at = await messaging_erasure.moment(conn, messaging_erasure.LEAD)
            await erasure.mark(conn, owner, at)
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


def test_it_goes_on_counting_meanwhile(place: Place, start: Start, home: Home) -> None:
    """A stream of events, an erasure in its middle: Bob's are all counted, Ann's only those of afterwards."""
    with start() as counter:
        for round_ in range(20):
            place.send([request(100 * round_ + n, sender=s) for n in range(20) for s in ("ann", "bob")])
            if round_ == 10:
                erase(home, ANN)
        until(lambda: senders(counter).get("bob") == 400, counter)
        until(lambda: place.committed() == 800, counter)
        ((erased_at,),) = home.rows("select extract(epoch from erased_at)::float8 from erasures")
        assert isinstance(erased_at, float)
        assert erased_at < time.time()
        # Of the rounds behind the erasure.
        assert senders(counter).get("ann") == 9 * 20
