"""What was decided on long ago is cleared, and never comes back; what waits for a person stays."""

import os
from uuid import UUID

import pytest

from messaging.database import Pool
from messaging.timers import Timers, Work
from services.gateway import upkeep
from services.gateway.decisions import Decisions
from services.gateway.records import Filter, Sight
from services.gateway.settings import GatewaySettings
from services.gateway.store import staff
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.gateway.letterbox import Raw, dead, letters_of, projecting, put, stored
from tests.messaging.harness import until
from web.problems import Problem

AGES = ("29 days", "31 days")


async def test_letters_that_were_resolved_long_ago_are_cleaned_away(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    kept_by_state = {"open": 2, "sending": 2, "sent": 1, "discarded": 1}
    names = [f"{state}/{age}" for state in kept_by_state for age in AGES]
    put(infra, letters_of(source).name, [dead(tenant, message_id=name) for name in [*names, "sent late"]])
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == len(names) + 1)
    for name in names:
        state, age = name.split("/")
        home.change(
            "update dead_letters set died_at = died_at - %s::interval, stored_at = stored_at - %s::interval"
            " where message_id = %s",
            *(age, age, name),
        )
        if state != "open":
            home.change(
                "update dead_letters set state = %s, decided_by = 'ann', decided_at = now() - %s::interval,"
                " sent_at = case when %s = 'sent' then now() - %s::interval end where message_id = %s",
                *(state, age, state, age, name),
            )
    home.change(
        "update dead_letters set state = 'sent', decided_at = now() - interval '40 days', sent_at = now()"
        " where message_id = 'sent late'"
    )
    timers = Timers(pool, upkeep.timers(GatewaySettings(database_url="unused")))
    timers.start()
    try:
        gone = {f"{state}/31 days" for state in ("sent", "discarded")}
        await until(lambda: len(cleared(home, source)) == len(gone), what="they are cleared")
    finally:
        await timers.stop()
    assert cleared(home, source) == gone
    assert stored(home, source) == len(names) + 1
    async with pool.connection() as conn:
        left = await staff.page(conn, Sight(tenant), Filter(source=source), below=None, limit=50)
    assert {letter.message_id for letter in left} == {*names, "sent late"} - gone
    for state, count in kept_by_state.items():
        assert sum(letter.message_id.startswith(state + "/") for letter in left) == count
    assert home.rows("select last_error from timers where name = 'gateway.clean_letters'") == [(None,)]


async def test_a_cleared_letter_is_nobodys_and_never_opens_again(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    """The topics keep every record for ever: whoever projects them anew must find what was decided on."""
    letters: list[Raw] = []
    for number, owner in enumerate((tenant, tenant, "")):
        key, _, headers = dead(tenant, message_id=f"m-{number}")
        letters.append((key if owner else None, os.urandom(100_000), headers))
    letters.append((None, b"no header of ours", []))
    put(infra, letters_of(source).name, letters)
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == len(letters))
    home.change(
        "update dead_letters set decided_at = now() - interval '2 days', decided_by = 'ann',"
        " state = case message_id when 'm-0' then 'sent' else 'discarded' end where source = %s",
        source,
    )
    query = "select id, state, pg_column_size(d.*) from dead_letters d where source = %s order by id"
    before = home.rows(query, source)
    work = clean_letters()
    async with pool.connection() as conn:
        await work(conn)
    after = home.rows(query, source)
    assert [row[:2] for row in after] == [row[:2] for row in before], "identity and state stay"
    sizes = [[int(str(row[2])) for row in rows] for rows in (before, after)]
    assert max(sizes[1]) < 500, sizes
    assert sum(sizes[0]) > 300_000, sizes
    seen, decisions = Sight(tenant, operator=True), Decisions(pool, [(source, "reader")])
    for letter_id, _, _ in after:
        assert isinstance(letter_id, UUID)
        async with pool.connection() as conn:
            assert await staff.get(conn, seen, letter_id) is None
            assert await staff.content(conn, seen, letter_id, 10) is None
        for decide in (decisions.send_back, decisions.discard):
            with pytest.raises(Problem) as refusal:
                await decide(seen, letter_id, "bob")
            assert refusal.value.status == 404

    # A group of its own starts from the beginning, as after the group's offsets were lost.
    async with projecting(infra, pool, source):
        put(infra, letters_of(source).name, [dead(tenant, message_id="last")])
        await until(lambda: stored(home, source) == len(letters) + 1)
        assert home.rows(query, source)[:-1] == after
        for unowned in (False, True):
            async with pool.connection() as conn:
                wanted = Filter(source=source, unowned=unowned)
                listed = await staff.page(conn, seen, wanted, below=None, limit=50)
            assert [letter.message_id for letter in listed] == ([] if unowned else ["last"])
            opened = await decisions.many(seen, wanted, "sending", "bob")
            assert opened == (0 if unowned else 1)


async def test_a_run_takes_one_batch_and_says_whether_there_may_be_more(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "BATCH", 10)
    put(infra, letters_of(source).name, [dead(tenant) for _ in range(25)])
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == 25)
    home.change(
        "update dead_letters set state = 'discarded', decided_at = now() - interval '2 days' where source = %s",
        source,
    )
    work = clean_letters()
    for done, more in ((10, True), (20, True), (25, False)):
        async with pool.connection() as conn:
            assert await work(conn) is more
        ((count,),) = home.rows(
            "select count(*) from dead_letters where source = %s and cleared_at is not null", source
        )
        assert count == done


async def test_what_is_left_of_a_letter_goes_once_its_topic_has_forgotten_it(
    infra: Infra, home: Home, pool: Pool, source: str, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead-letter topics keep a record for 103 days at most. In batches of one; an open letter stays, however old."""
    monkeypatch.setattr(upkeep, "BATCH", 1)
    names = ["cleared, 102", "cleared, 104", "cleared, 105", "open, 104"]
    put(infra, letters_of(source).name, [dead(tenant, message_id=name) for name in names])
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == len(names))
    home.change(
        "update dead_letters set stored_at = now() - (right(message_id, 3) || ' days')::interval where source = %s",
        source,
    )
    home.change(
        "update dead_letters set state = 'discarded', decided_at = now() - interval '50 days'"
        " where source = %s and message_id like 'cleared%%'",
        source,
    )
    works = {name: work for name, (_, work) in upkeep.timers(GatewaySettings(database_url="unused")).items()}
    async with pool.connection() as conn:
        while await works["gateway.clean_letters"](conn):
            pass
    more = []
    for _ in range(3):
        async with pool.connection() as conn:
            more.append(await works["gateway.drop_letters"](conn))
    assert more == [True, True, False]
    left = home.rows("select message_id from dead_letters where source = %s order by 1", source)
    assert left == [("cleared, 102",), ("open, 104",)]


def clean_letters() -> Work:
    """The timer's work, with letters kept for a day."""
    return upkeep.timers(GatewaySettings(database_url="unused", letter_retention_days=1))["gateway.clean_letters"][1]


def cleared(home: Home, source: str) -> set[str]:
    query = "select message_id from dead_letters where source = %s and cleared_at is not null"
    return {str(row[0]) for row in home.rows(query, source)}
