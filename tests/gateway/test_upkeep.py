"""What was decided on long ago leaves the table; what waits for a person never does."""

import pytest

from messaging.database import Pool
from messaging.timers import Timers
from services.gateway import upkeep
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.gateway.letterbox import dead, letters_of, projecting, put, stored
from tests.messaging.harness import until

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
    timers = Timers(pool, upkeep.timers(30.0))
    timers.start()
    try:
        gone = {f"{state}/31 days" for state in ("sent", "discarded")}
        await until(lambda: stored(home, source) == len(names) + 1 - len(gone), what="they are deleted")
    finally:
        await timers.stop()
    left = {str(row[0]) for row in home.rows("select message_id from dead_letters where source = %s", source)}
    assert left == {*names, "sent late"} - gone
    for state, count in kept_by_state.items():
        assert sum(name.startswith(state + "/") for name in left) == count
    assert home.rows("select last_error from timers where name = 'gateway.clean_letters'") == [(None,)]


async def test_more_than_a_batch_goes_at_once(
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
    ((_, work),) = upkeep.timers(1.0).values()
    async with pool.connection() as conn:
        await work(conn)
    assert stored(home, source) == 0
