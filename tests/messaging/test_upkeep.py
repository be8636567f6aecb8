"""The timers of every outbox and ledger, on a real database: what is past its time goes, by the settings."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from messaging import upkeep
from messaging.errors import Misconfigured
from messaging.settings import load
from messaging.timers import Timers
from messaging.upkeep import UpkeepSettings
from tests.fixtures.outbox import Service, migrated
from tests.fixtures.stack import Database
from tests.messaging.harness import until


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        yield migrated_service


async def test_what_is_past_its_time_goes(service: Service) -> None:
    """A day and a half for the outbox, three for the ledger: of each one row is older, one is not; open jobs stay."""
    service.execute(
        "INSERT INTO outbox (id, topic, key, type, version, payload, source, subject, occurred_at)"
        " SELECT gen_random_uuid(), 't', 'k:k', 'e', 1, '', 's', days::text, now() - make_interval(days => days)"
        " FROM unnest(ARRAY[1, 3]) AS days"
    )
    service.execute(
        "INSERT INTO relay_position (name, prev, system_identifier)"
        " SELECT 'r', pg_current_snapshot(), system_identifier FROM pg_control_system()"
    )
    service.execute(
        "INSERT INTO ledger (consumer, message_id, token, worker, state, updated_at)"
        " SELECT 'c', state || days, 0, 0, state, now() - make_interval(days => days)"
        " FROM unnest(ARRAY[2, 4]) AS days, unnest(ARRAY['done', 'dead', 'retrying']) AS state"
    )
    service.execute(
        "INSERT INTO erasures (owner, erased_at)"
        " SELECT sha256(days::text::bytea), now() - make_interval(days => days) FROM unnest(ARRAY[119, 121]) AS days"
    )
    settings = UpkeepSettings(database_url="unused", outbox_retention_days=1.5, ledger_retention_days=3)
    async with AsyncConnectionPool(service.conninfo, min_size=1, max_size=4, open=False) as pool:
        timers = Timers(pool, upkeep.timers(settings))
        timers.start()
        try:
            ran = "SELECT count(*) FROM timers WHERE last_run_at IS NOT NULL"
            await until(lambda: service.execute(ran) == [(3,)])
        finally:
            await timers.stop()
    assert service.execute("SELECT subject FROM outbox") == [("1",)]
    assert service.execute("SELECT message_id FROM ledger ORDER BY 1") == [
        ("dead2",),
        ("done2",),
        ("retrying2",),
        ("retrying4",),
    ]
    assert service.execute("SELECT erased_at > now() - interval '120 days' FROM erasures") == [(True,)]
    assert service.execute("SELECT name, last_error FROM timers ORDER BY 1") == [
        ("erasures.forget", None),
        ("ledger.clean", None),
        ("outbox.maintain", None),
    ]


async def test_a_run_of_the_ledger_takes_one_batch(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LEDGER_BATCH", 10)
    service.execute(
        "INSERT INTO ledger (consumer, message_id, token, worker, state, updated_at)"
        " SELECT 'c', i::text, 0, 0, 'done', now() - interval '30 days' FROM generate_series(1, 25) AS i"
    )
    clean = upkeep.timers(UpkeepSettings(database_url="unused"))["ledger.clean"][1]
    async with await psycopg.AsyncConnection.connect(service.conninfo, autocommit=True) as conn:
        assert [await clean(conn) for _ in range(3)] == [True, True, False]
    assert service.execute("SELECT count(*) FROM ledger") == [(0,)]


def test_the_ledger_outlives_the_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBOT_DATABASE_URL", "unused")
    monkeypatch.setenv("WORKBOT_OUTBOX_RETENTION_DAYS", "15")
    with pytest.raises(Misconfigured, match="at least twice"):
        load(UpkeepSettings)
    monkeypatch.setenv("WORKBOT_LEDGER_RETENTION_DAYS", "30")
    assert load(UpkeepSettings).ledger_retention_days == 30
