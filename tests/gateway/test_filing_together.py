"""Requests filed together: one statement, each its own answer, and nobody's trouble is another's."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg_pool import PoolTimeout

from messaging.batcher import Ways
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import Outage, OutboxFull
from messaging.message import Key
from messaging.registry import Registry
from schemas import catalog
from schemas.events import RequestCreated
from services.gateway import desk as desks
from services.gateway.asks import Ask
from services.gateway.desk import Desk
from services.gateway.records import OnceKey
from services.gateway.requests import Answer, Draft, Receipt, create_request, create_requests, draft, receipt
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from web.problems import Problem

ASK = Ask("The printer is jammed", "Second floor.", "IT")
OTHER = Ask("A new chair", "", "Facilities")


@pytest.fixture
async def desk(pool: Pool, codec: Codec) -> AsyncIterator[Desk]:
    """On connections in autocommit, as the API has them."""
    async with single_pool(pool) as singles:
        yield Desk(singles, codec)


@asynccontextmanager
async def single_pool(pool: Pool) -> AsyncIterator[Pool]:
    singles = type(pool)(pool.conninfo, kwargs={"autocommit": True}, min_size=1, max_size=8, open=False)
    async with singles:
        yield singles


@asynccontextmanager
async def registry_of(infra: Infra) -> AsyncIterator[Registry]:
    registry = Registry(infra.registry_url)
    try:
        yield registry
    finally:
        await registry.close()


@asynccontextmanager
async def holding(pool: Pool, codec: Codec, whose: Key) -> AsyncIterator[tuple[Connection, Receipt]]:
    """Another transaction, still open, that has filed under the sender's key "k"."""
    async with pool.connection() as other:
        yield other, await create_request(other, codec, whose, ASK, channel="message", idempotency_key="k")


@contextmanager
def refusing(home: Home, title: str) -> Iterator[None]:
    """The database refuses requests of this title."""
    home.change(
        "create function refuse() returns trigger language plpgsql as"
        f" $$ begin if new.title = '{title}' then raise 'no'; end if; return new; end $$"
    )
    home.change("create trigger refusing before insert on requests for each row execute function refuse()")
    try:
        yield
    finally:
        home.change("drop function refuse cascade")


def titles(home: Home, tenant: str) -> list[str]:
    """Of what was filed, in the order of the events."""
    rows = home.rows(
        "select r.title from requests r join outbox o on o.subject = r.id::text"
        " where r.tenant = %s and o.occurred_at = r.created_at and o.key = r.tenant || ':' || r.sender"
        " order by o.seq",
        tenant,
    )
    return [str(title) for (title,) in rows]


def receipts(answers: Sequence[Answer]) -> list[Receipt]:
    return [receipt(answer) for answer in answers]


async def test_a_repeat_needs_no_schema(pool: Pool, codec: Codec, infra: Infra, tenant: str) -> None:
    """While the registry has not told how to write events, only what is new waits for it."""
    ann = Key(tenant, "ann")
    async with registry_of(infra) as registry, pool.connection() as conn:
        unknowing = catalog.codec(registry)
        unknowing.expect([RequestCreated])
        first = await create_request(conn, codec, ann, ASK, idempotency_key="k")
        drafts = [draft(unknowing, ann, ASK, idempotency_key=key) for key in ("k", "l", None)]
        again, *new = await create_requests(conn, drafts)
    assert again == Receipt(first.id, repeated=True)
    assert [type(answer) for answer in new] == [Outage, Outage]


async def test_they_are_one_statement_and_keep_their_order(home: Home, codec: Codec, tenant: str) -> None:
    drafts = [draft(codec, Key(tenant, "ann"), Ask(f"{n}", "", "IT")) for n in range(30)]
    async with await psycopg.AsyncConnection.connect(home.admin, autocommit=True) as conn:
        await conn.execute("set log_statement = 'all'")
        await conn.execute("set client_min_messages = log")
        said: list[str] = []
        conn.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
        answers = await create_requests(conn, drafts)
    assert len(said) == 1
    assert [answer.id for answer in receipts(answers)] == [draft.request.id for draft in drafts]
    assert titles(home, tenant) == [f"{n}" for n in range(30)]


@given(
    asked=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "k", "m"]), st.booleans()), max_size=12)
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_each_gets_the_answer_it_would_get_alone(
    home: Home, pool: Pool, codec: Codec, asked: list[tuple[str, str | None, bool]]
) -> None:
    """Some use a key twice, for the same or for something else; some of it was filed before."""
    tenant = f"tenant-{time.monotonic_ns()}"
    before = draft(codec, Key(tenant, "a"), ASK, idempotency_key="k")
    drafts = [
        draft(codec, Key(tenant, sender), ASK if same else OTHER, idempotency_key=key) for sender, key, same in asked
    ]
    first: dict[OnceKey, Draft] = {OnceKey(tenant, "a", "k"): before}
    async with pool.connection() as conn:
        await create_requests(conn, [before])
        answers = await create_requests(conn, drafts)
    for each, answer in zip(drafts, answers, strict=True):
        once = each.request.once
        meant = each if once is None else first.setdefault(once, each)
        if meant.request.fingerprint != each.request.fingerprint:
            assert isinstance(answer, Problem)
            assert answer.status == 422
        else:
            assert answer == Receipt(meant.request.id, repeated=meant is not each)
    filed = {answer.id for answer in answers if isinstance(answer, Receipt)} | {before.request.id}
    kept = home.rows(
        "select r.id, count(o.id) from requests r left join outbox o on o.subject = r.id::text"
        " where r.tenant = %s group by r.id",
        tenant,
    )
    assert dict(kept) == dict.fromkeys(filed, 1)


async def test_a_full_outbox_is_told_to_those_whom_it_stops(
    home: Home, pool: Pool, codec: Codec, tenant: str
) -> None:
    ann = Key(tenant, "ann")
    async with pool.connection() as conn:
        one = await create_request(conn, codec, ann, ASK, idempotency_key="k")
    home.change("insert into outbox_limit (ceiling) values (0) on conflict (single) do update set ceiling = 0")
    try:
        async with pool.connection() as conn:
            again, new = await create_requests(
                conn, [draft(codec, ann, ASK, idempotency_key="k"), draft(codec, ann, OTHER)]
            )
            await conn.rollback()
    finally:
        home.change("delete from outbox_limit")
    assert again == Receipt(one.id, repeated=True)
    assert isinstance(new, OutboxFull)
    assert titles(home, tenant) == [ASK.title]


async def test_two_that_write_the_same_keys_at_once_do_not_wait_for_each_other(
    pool: Pool, codec: Codec, tenant: str
) -> None:
    """In opposite orders: without one order for all, each would hold what the other waits for."""
    ann = Key(tenant, "ann")

    async def file(numbers: Sequence[int]) -> list[Receipt]:
        drafts = [draft(codec, ann, ASK, idempotency_key=f"k{number}") for number in numbers]
        async with pool.connection() as conn:
            return receipts(await create_requests(conn, drafts))

    for turn in range(20):
        numbers = range(turn * 50, turn * 50 + 50)
        there, back = await asyncio.gather(file(numbers), file(numbers[::-1]))
        assert [one.id for one in there] == [one.id for one in reversed(back)]


async def test_what_comes_while_others_are_written_is_written_together(home: Home, desk: Desk, tenant: str) -> None:
    filed = await asyncio.gather(*(desk.file(Key(tenant, f"s{n}"), ASK, None) for n in range(200)))
    assert len({one.id for one in filed}) == 200
    ((requests, statements),) = home.rows(
        "select count(*), count(distinct xmin::text) from requests where tenant = %s", tenant
    )
    assert requests == 200
    assert 200 / desks.MOST <= int(str(statements)) <= 10
    assert len(titles(home, tenant)) == 200


async def test_one_that_the_database_refuses_is_alone_with_it(home: Home, desk: Desk, tenant: str) -> None:
    asks = [Ask("poison" if n in (3, 7) else f"{n}", "", "IT") for n in range(10)]
    with refusing(home, "poison"):
        answers = await asyncio.gather(
            *(desk.file(Key(tenant, "ann"), ask, f"k{n}") for n, ask in enumerate(asks)), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [
        psycopg.errors.RaiseException if ask.title == "poison" else Receipt for ask in asks
    ]
    assert sorted(titles(home, tenant)) == sorted(ask.title for ask in asks if ask.title != "poison")


async def test_one_that_waits_for_another_transaction_holds_nobody_up(
    home: Home, pool: Pool, codec: Codec, desk: Desk, tenant: str
) -> None:
    ann, ben = Key(tenant, "ann"), Key(tenant, "ben")
    async with holding(pool, codec, ann) as (other, first):
        waits = [asyncio.create_task(desk.file(ann, ASK, "k")) for _ in range(3)]
        async with asyncio.timeout(5):
            for n in range(20):
                await desk.file(ben, Ask(f"{n}", "", "IT"), f"{n}" if n % 2 else None)
        assert not any(task.done() for task in waits)
        await other.commit()
        assert await asyncio.gather(*waits) == [Receipt(first.id, repeated=True)] * 3
    assert len(titles(home, tenant)) == 21


async def test_many_tries_under_one_key_that_hangs_take_one_way(
    home: Home, pool: Pool, codec: Codec, desk: Desk, tenant: str
) -> None:
    """However often and patiently they come: all others, with a key or without, go on."""
    ann, ben = Key(tenant, "ann"), Key(tenant, "ben")
    async with holding(pool, codec, ann) as (other, first):
        tries = []
        for n in range(3 * desks.WAYS.most):
            tries.append(asyncio.create_task(desk.file(ann, ASK if n % 2 else OTHER, "k")))
            await asyncio.sleep(2 * desks.WAYS.patience)
            async with asyncio.timeout(5):
                await desk.file(ben, Ask(f"{n}", "", "IT"), f"{n}")
        await other.commit()
        answers = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Problem, Receipt] * (len(tries) // 2)
    assert {answer.id for answer in answers if isinstance(answer, Receipt)} == {first.id}
    assert len(titles(home, tenant)) == 1 + len(tries)


async def test_a_caller_that_goes_lets_the_next_under_its_key_in(home: Home, desk: Desk, tenant: str) -> None:
    ann = Key(tenant, "ann")
    for turn in range(20):
        gone = asyncio.create_task(desk.file(ann, ASK, f"k{turn}"))
        await asyncio.sleep(0.0005 * turn)
        gone.cancel()
        async with asyncio.timeout(5):
            await desk.file(ann, ASK, f"k{turn}")
    assert len(titles(home, tenant)) == 20


async def test_whose_turn_does_not_come_is_told_and_not_filed(
    home: Home, pool: Pool, codec: Codec, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "WAYS", Ways(patience=0.02, most=2, wait=0.2))
    ann = Key(tenant, "ann")
    async with single_pool(pool) as singles, holding(pool, codec, ann) as (other, _):
        desk = Desk(singles, codec)
        await create_request(other, codec, ann, ASK, idempotency_key="l")
        waits = []
        for key in "kl":
            waits.append(asyncio.create_task(desk.file(ann, ASK, key)))
            await asyncio.sleep(0.1)
        with pytest.raises(Outage, match="no more requests"):
            await desk.file(ann, OTHER, "m")
        await other.rollback()
        assert [one.repeated for one in await asyncio.gather(*waits)] == [False, False]
        await desk.file(ann, Ask("afterwards", "", "IT"), None)
    assert titles(home, tenant) == [ASK.title, ASK.title, "afterwards"]


async def test_a_connection_that_breaks_is_told_to_all_whom_it_carried(
    home: Home, pool: Pool, codec: Codec, tenant: str
) -> None:
    """They are in one statement, which hangs; its backend is terminated. Nothing is kept, and the next are filed."""
    async with single_pool(pool) as singles, await psycopg.AsyncConnection.connect(home.admin) as blocker:
        desk = Desk(singles, codec)
        await blocker.execute("lock table outbox in access exclusive mode")
        filing = [asyncio.create_task(desk.file(Key(tenant, "ann"), ASK, None)) for _ in range(10)]
        blocked = (
            "select pid from pg_stat_activity"
            " where cardinality(pg_blocking_pids(pid)) > 0 and datname = current_database()"
        )
        async with asyncio.timeout(30):
            while not (waiting := await (await blocker.execute(blocked)).fetchall()):
                await asyncio.sleep(0.03)
        assert len(waiting) == 1
        await blocker.execute("select pg_terminate_backend(%s)", waiting[0])
        answers = await asyncio.gather(*filing, return_exceptions=True)
        assert all(isinstance(answer, psycopg.OperationalError) for answer in answers)
        await blocker.rollback()
        assert titles(home, tenant) == []
        async with asyncio.timeout(30):
            await desk.file(Key(tenant, "ann"), Ask("next", "", "IT"), None)
    assert titles(home, tenant) == ["next"]


async def test_while_there_is_no_connection_nobody_waits_longer_than_the_pool_does(
    pool: Pool, codec: Codec, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever one comes: those before them wait for the same connections, and their own wait is counted with it."""
    monkeypatch.setattr(desks, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(desks, "WAYS", desks.WAYS._replace(wait=1.0))
    waited: list[float] = []

    async def file(desk: Desk, later: float, number: int) -> None:
        await asyncio.sleep(later)
        began = time.monotonic()
        with pytest.raises((Outage, PoolTimeout)):
            await desk.file(Key(tenant, "ann"), ASK, f"{number}" if number % 2 else None)
        waited.append(time.monotonic() - began)

    gone = "host=127.0.0.1 port=1 dbname=gone connect_timeout=1"
    nowhere = type(pool)(gone, min_size=1, max_size=2, open=False, reconnect_timeout=60.0)
    await nowhere.open()
    desk = Desk(nowhere, codec)
    try:
        await asyncio.gather(*(file(desk, number * 0.03, number) for number in range(100)))
    finally:
        await nowhere.close()
    # And half a second until the next look at those whose turn does not come.
    assert max(waited) < 1.9, sorted(waited)[-5:]
