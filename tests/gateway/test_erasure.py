"""Erasing a sender: requests and the content of dead letters go, also of letters that are projected afterwards."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from messaging import erasure as messaging_erasure
from messaging import migrate
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.message import TIME, Key
from services.gateway import erasure
from services.gateway.asks import parse
from services.gateway.requests import create_request
from tests.fixtures.processes import Home
from tests.fixtures.stack import Infra
from tests.gateway.letterbox import Raw, dead, letters_of, projecting, put, sending, stored
from tests.messaging.harness import until

NOTHING = {
    "requests": 0,
    "dead letters": 0,
    "events in the outbox": 0,
    "events Kafka refused": 0,
    "runs of jobs": 0,
}
STATES = ("open", "sending", "sent", "discarded")


@pytest.fixture
async def owner(home: Home) -> AsyncIterator[Connection]:
    """As `workbot erase` connects."""
    conninfo = make_conninfo(home.admin, options=f"-c role={migrate.OWNER}")
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
        yield conn


async def erase(conn: Connection, who: Key) -> dict[str, int]:
    """All that there is by now, as the command does for every service."""
    now = await messaging_erasure.moment(conn)
    await messaging_erasure.mark(conn, who, now)
    return await erasure.erase(conn, who, now, lambda kind, more: None)


def happened(letter: Raw, at: datetime) -> Raw:
    """The same letter, of an event of that time."""
    key, value, headers = letter
    return key, value, [(TIME, at.isoformat().encode()), *headers]


def content(home: Home, source: str) -> dict[str, tuple[object, ...]]:
    """State, and what a person could read or run again, by message id."""
    rows = home.rows(
        "select message_id, state, num_nonnulls(key, value, header_names, header_values, tenant, owner, type,"
        " subject, error, decided_by) from dead_letters where source = %s",
        source,
    )
    return {str(row[0]): row[1:] for row in rows}


async def test_requests_and_their_events_go(
    owner: Connection, pool: Pool, codec: Codec, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of two. Bob in the same tenant and Ann in another keep theirs."""
    monkeypatch.setattr(messaging_erasure, "BATCH", 2)
    ann, others = Key(tenant, "ann"), (Key(tenant, "bob"), Key(f"{tenant}-b", "ann"))
    for who in (ann, *others):
        for n in range(3):
            async with pool.connection() as conn:
                await create_request(conn, codec, who, parse(f"Title {n}", "", "it"), idempotency_key=str(n))
    whole = NOTHING | {"requests": 3, "events in the outbox": 3}
    assert await erasure.count(owner, ann) == whole
    assert await erase(owner, ann) == whole
    assert await erase(owner, ann) == NOTHING
    assert await erasure.count(owner, ann) == NOTHING
    for who in others:
        assert await erasure.count(owner, who) == whole


async def test_a_request_shares_the_fate_of_its_event(
    owner: Connection, home: Home, pool: Pool, codec: Codec, tenant: str
) -> None:
    """Filed before the moment, committed before or after it: gone, whole. Filed after it: kept, whole, also while the
    rest is erased. What tells them apart is one time, which the row and the event have in common."""
    ann = Key(tenant, "ann")

    async def file(conn: Connection, title: str) -> None:
        await create_request(conn, codec, ann, parse(title, "", "it"))

    def kept() -> list[tuple[object, ...]]:
        return home.rows(
            "select r.title, r.created_at = o.occurred_at, o.occurred_at from requests r"
            " full join outbox o on o.subject = r.id::text"
            " where coalesce(r.tenant || ':' || r.sender, o.key) = %s order by 1",
            str(ann),
        )

    async with pool.connection() as conn:
        await file(conn, "before")
    async with pool.connection() as slow:
        await file(slow, "slow")
        moment = await messaging_erasure.moment(owner)
        await messaging_erasure.mark(owner, ann, moment)
        async with pool.connection() as conn:
            await file(conn, "after")
        erasing = asyncio.create_task(erasure.erase(owner, ann, moment, lambda kind, more: None))
        await asyncio.sleep(0.2)
        assert not erasing.done()
        assert [row[0] for row in kept()] == ["after", "before"]
        await slow.commit()
        async with asyncio.timeout(30):
            gone = await erasing
    assert gone == NOTHING | {"requests": 2, "events in the outbox": 2}
    ((title, together, at),) = kept()
    assert (title, together) == ("after", True)
    assert isinstance(at, datetime)
    assert at > moment


async def test_letters_lose_their_content_whatever_was_decided_on_them(
    owner: Connection, infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    """The identity stays: whoever projects the topic anew opens nothing."""
    letters = [dead(tenant, message_id=state) for state in STATES]
    letters += [dead(tenant, message_id="bob", sender="bob"), dead(f"{tenant}-b", message_id="other")]
    put(infra, letters_of(source).name, letters)
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == len(letters))
    home.change(
        "update dead_letters set state = message_id, decided_by = 'eve', decided_at = now()"
        " where source = %s and message_id in ('sending', 'sent', 'discarded')",
        source,
    )
    before = content(home, source)
    assert await erasure.count(owner, Key(tenant, "ann")) == NOTHING | {"dead letters": 4}
    assert await erase(owner, Key(tenant, "ann")) == NOTHING | {"dead letters": 4}
    after = content(home, source)
    assert {state: after[state] for state in STATES} == {
        "open": ("discarded", 0),
        "sending": ("discarded", 0),
        "sent": ("sent", 0),
        "discarded": ("discarded", 0),
    }
    assert {name: after[name] for name in ("bob", "other")} == {name: before[name] for name in ("bob", "other")}
    assert await erase(owner, Key(tenant, "ann")) == NOTHING
    # A group of its own starts from the beginning, as after the group's offsets were lost.
    async with projecting(infra, pool, source), sending(infra, pool, source):
        put(infra, letters_of(source).name, [dead(tenant, message_id="last", sender="bob")])
        await until(lambda: stored(home, source) == len(letters) + 1)
    assert content(home, source) == after | {"last": content(home, source)["last"]}
    assert content(home, source)["last"][0] == "open"


async def test_a_letter_that_is_projected_later_is_judged_by_when_its_event_happened(
    owner: Connection, infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    """A job that was still on Kafka may die afterwards; what the sender sends after the erasure is theirs again."""
    await erase(owner, Key(tenant, "ann"))
    now = datetime.now(UTC)
    put(
        infra,
        letters_of(source).name,
        [
            happened(dead(tenant, message_id="before"), now - timedelta(hours=1)),
            happened(dead(tenant, message_id="after"), now + timedelta(hours=1)),
            happened(dead(tenant, message_id="bob", sender="bob"), now - timedelta(hours=1)),
            dead(tenant, message_id="died after"),
        ],
    )
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == 4)
    found = content(home, source)
    assert found.pop("before") == ("discarded", 0)
    assert {state for state, _ in found.values()} == {"open"}
    assert found.keys() == {"after", "bob", "died after"}


async def test_a_letter_without_a_time_is_judged_by_when_it_died(
    owner: Connection, infra: Infra, home: Home, pool: Pool, source: str, tenant: str
) -> None:
    put(infra, letters_of(source).name, [dead(tenant, message_id=str(uuid.uuid4()))])
    await erase(owner, Key(tenant, "ann"))
    async with projecting(infra, pool, source):
        await until(lambda: stored(home, source) == 1)
    assert list(content(home, source).values()) == [("discarded", 0)]
