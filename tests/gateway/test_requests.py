"""`create_request`: the request and its event are one statement, whoever calls it and whatever comes in between."""

import asyncio
import uuid
from collections.abc import Collection

import psycopg
import pytest

from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import Outage, OutboxFull
from messaging.message import TYPE, VERSION, Key
from schemas.events import RequestCreated
from services.gateway.asks import Ask, parse
from services.gateway.records import Channel, Earlier, OnceKey
from services.gateway.requests import create_request
from services.gateway.store import requests as store
from tests.fixtures.processes import Home
from tests.gateway.conftest import Start
from web.problems import Problem

FULL = "insert into outbox_limit (ceiling) values (0) on conflict (single) do update set ceiling = 0"
ASK = Ask("The printer is jammed", "Second floor.", "IT")


@pytest.fixture
def whose(tenant: str) -> Key:
    return Key(tenant, "ann")


def kept(home: Home, whose: Key) -> tuple[int, int]:
    """How many requests and how many events this sender has."""
    ((requests, events),) = home.rows(
        "select (select count(*) from requests where tenant = %s and sender = %s),"
        " (select count(*) from outbox where key = %s)",
        *(*whose, str(whose)),
    )
    return int(str(requests)), int(str(events))


@pytest.mark.parametrize("channel", ["api", "chat", "message"])
async def test_the_request_brings_its_event(
    home: Home, pool: Pool, codec: Codec, whose: Key, channel: Channel
) -> None:
    async with pool.connection() as conn:
        receipt = await create_request(conn, codec, whose, ASK, channel=channel)
    ((request_xid, stored),) = home.rows("select xmin::text, channel from requests where id = %s", receipt.id)
    (event,) = home.rows(
        "select (xid::text::bigint %% (2::bigint ^ 32)::bigint)::text, topic, key, type, version, payload, source"
        " from outbox where subject = %s",
        str(receipt.id),
    )
    xid, topic, key, type_, version, payload, source = event
    assert stored == channel
    assert xid == request_xid, "one transaction"
    assert (topic, key, source) == ("requests.events", str(whose), "gateway")
    headers = {TYPE: str(type_).encode(), VERSION: str(version).encode()}
    assert isinstance(payload, bytes)
    assert await codec.decode(headers, payload, {RequestCreated}) == RequestCreated(
        request_id=str(receipt.id),
        tenant=whose.tenant,
        sender=whose.sender,
        team=ASK.team,
        title=ASK.title,
        body=ASK.body,
        channel=channel,
    )


async def test_it_is_one_statement(home: Home, pool: Pool, codec: Codec, whose: Key) -> None:
    """Told by the server: it executed one, which wrote both, so no crash can come in between."""
    async with await psycopg.AsyncConnection.connect(home.admin, autocommit=True) as conn:
        await conn.execute("set log_statement = 'all'")
        await conn.execute("set client_min_messages = log")
        said: list[str] = []
        conn.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
        await create_request(conn, codec, whose, ASK)
    (statement,) = said
    assert "insert into requests" in statement
    assert "INSERT INTO outbox" in statement
    assert kept(home, whose) == (1, 1)


async def test_the_callers_rollback_takes_both_with_it(home: Home, pool: Pool, codec: Codec, whose: Key) -> None:
    async with pool.connection() as conn:
        await create_request(conn, codec, whose, ASK)
        await conn.rollback()
    assert kept(home, whose) == (0, 0)


@pytest.mark.parametrize("trigger", ["requests", "outbox"])
async def test_when_either_half_is_refused_there_is_neither(
    home: Home, pool: Pool, codec: Codec, whose: Key, trigger: str
) -> None:
    """A row's own trigger fails after it was inserted: what the other half wrote is gone, too."""
    home.change("create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$")
    home.change(f"create trigger refusing after insert on {trigger} for each row execute function refuse()")
    try:
        with pytest.raises(psycopg.errors.RaiseException):
            async with pool.connection() as conn:
                await create_request(conn, codec, whose, ASK)
    finally:
        home.change("drop function refuse cascade")
    assert kept(home, whose) == (0, 0)


async def test_a_backend_killed_in_the_middle_leaves_neither(
    home: Home, pool: Pool, codec: Codec, whose: Key
) -> None:
    """The statement hangs between its two halves, on a lock, and its backend is terminated there."""
    async with await psycopg.AsyncConnection.connect(home.admin) as blocker:
        await blocker.execute("lock table outbox in access exclusive mode")
        async with await psycopg.AsyncConnection.connect(home.conninfo, autocommit=True) as conn:
            filing = asyncio.create_task(create_request(conn, codec, whose, ASK))
            await until_waiting(blocker, conn)
            await blocker.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
            with pytest.raises(psycopg.OperationalError):
                await filing
    assert kept(home, whose) == (0, 0)


async def until_waiting(observer: Connection, conn: Connection) -> None:
    for _ in range(1000):
        cursor = await observer.execute(
            "select from pg_locks where pid = %s and not granted", [conn.info.backend_pid]
        )
        if await cursor.fetchone() is not None:
            return
        await asyncio.sleep(0.03)
    pytest.fail("the statement does not wait")


async def test_a_full_outbox_refuses_the_request(home: Home, pool: Pool, codec: Codec, whose: Key) -> None:
    home.change(FULL)
    try:
        with pytest.raises(OutboxFull):
            async with pool.connection() as conn:
                await create_request(conn, codec, whose, ASK)
    finally:
        home.change("delete from outbox_limit")
    assert kept(home, whose) == (0, 0)


def test_a_full_outbox_over_http(start: Start, home: Home, whose: Key) -> None:
    """503 with Retry-After; what was filed before is still answered, and afterwards all goes on."""
    asked, key = {"title": "x", "team": "IT"}, {"Idempotency-Key": uuid.uuid4().hex}
    with start("api") as gateway, gateway.client("ann", whose.tenant, "sender") as ann:
        before = ann.post("/api/requests", json=asked, headers=key).json()
        home.change(FULL)
        try:
            answer = ann.post("/api/requests", json=asked)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
            assert answer.json()["type"] == "urn:workbot:problem:busy"
            assert ann.post("/api/requests", json=asked, headers=key).json() == before
            assert kept(home, whose) == (1, 1)
        finally:
            home.change("delete from outbox_limit")
        assert ann.post("/api/requests", json=asked).status_code == 201
    assert kept(home, whose) == (2, 2)


async def test_in_a_callers_transaction_a_repeat_is_found(home: Home, pool: Pool, codec: Codec, whose: Key) -> None:
    """As a text message that comes twice will be: under its own id, in the job's transaction."""
    receipts = []
    for _ in range(2):
        async with pool.connection() as conn:
            receipts.append(await create_request(conn, codec, whose, ASK, channel="message", idempotency_key="m-1"))
    assert [receipt.repeated for receipt in receipts] == [False, True]
    assert len({receipt.id for receipt in receipts}) == 1
    assert kept(home, whose) == (1, 1)
    with pytest.raises(Problem) as problem:
        async with pool.connection() as conn:
            await create_request(conn, codec, whose, Ask("x", "", "IT"), idempotency_key="m-1")
    assert problem.value.status == 422


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_repeat_waits_for_the_first_to_end(
    home: Home, pool: Pool, codec: Codec, whose: Key, ends: str
) -> None:
    async with pool.connection() as first, pool.connection() as second:
        one = await create_request(first, codec, whose, ASK, idempotency_key="k")
        repeat = asyncio.create_task(create_request(second, codec, whose, ASK, idempotency_key="k"))
        async with await psycopg.AsyncConnection.connect(home.admin, autocommit=True) as observer:
            await until_waiting(observer, second)
        await (first.commit() if ends == "commit" else first.rollback())
        two = await repeat
        await second.commit()
    assert two.repeated is (ends == "commit")
    assert (two.id == one.id) is (ends == "commit")
    assert kept(home, whose) == (1, 1)


@pytest.mark.parametrize("erased", [1, 2])
async def test_one_in_the_way_that_is_erased_makes_room(
    home: Home, pool: Pool, codec: Codec, whose: Key, erased: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another with the key comes in between and is erased before it is read: this one is filed. If that happens
    again, it is refused as while a server is away, with nothing kept."""
    real, answers = store.earlier, 0

    async def earlier(conn: Connection, keys: Collection[OnceKey]) -> dict[OnceKey, Earlier]:
        nonlocal answers
        [(tenant, sender, key)] = keys
        home.change("delete from requests where tenant = %s", tenant)
        found = await real(conn, keys)
        if answers < erased:
            home.change(
                "insert into requests (id, tenant, sender, team, title, body, channel, idempotency_key, fingerprint)"
                " values (%s, %s, %s, 'IT', 'x', '', 'api', %s, 'x')",
                *(uuid.uuid4(), tenant, sender, key),
            )
        answers += 1
        return found

    monkeypatch.setattr(store, "earlier", earlier)
    async with pool.connection() as conn:
        await conn.set_autocommit(True)
        if erased == 1:
            receipt = await create_request(conn, codec, whose, ASK, idempotency_key="k")
            assert not receipt.repeated
            assert home.rows("select id from requests where tenant = %s", whose.tenant) == [(receipt.id,)]
        else:
            with pytest.raises(Outage):
                await create_request(conn, codec, whose, ASK, idempotency_key="k")
        await conn.set_autocommit(False)
    assert kept(home, whose) == ((1, 1) if erased == 1 else (0, 0))


def test_asks_differ_by_any_part() -> None:
    asks = [parse("a", "b", "c"), parse("ab", "", "c"), parse("a", "c", "b"), parse("a", "b", "cc")]
    assert len({ask.fingerprint for ask in asks}) == len(asks)
    assert parse(" a ", "b", "c\n").fingerprint == asks[0].fingerprint
