"""Erasing a sender: what they were told and what others were told of them goes, and stays away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from messaging import erasure as messaging_erasure
from messaging import migrate
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.job import Job
from messaging.message import TIME, Key, new_id
from schemas.events import DocumentRead, NotificationDeliveryRequested, RequestCreated
from services.notifications import erasure
from services.notifications.channels import Channels
from services.notifications.handlers import Deliver, Tell
from services.notifications.records import Owner, Sight
from services.notifications.store import inbox, outgoing
from tests.fixtures.processes import Home
from tests.notifications.conftest import read, request

NOTHING = {
    "deliveries": 0,
    "notifications": 0,
    "how far they have read": 0,
    "notes of what they read": 0,
    "subscriptions": 0,
    "events in the outbox": 0,
    "events Kafka refused": 0,
    "runs of jobs": 0,
}


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


async def tell(
    pool: Pool, codec: Codec, event: RequestCreated | DocumentRead, at: datetime | None = None, id_: str = ""
) -> None:
    """As the consumer does: one run of the event's job."""
    happened = at or datetime.now(UTC)

    async def finish(_: Connection) -> bool:
        return True

    headers = {TIME: happened.isoformat().encode()}
    key = Key(event.tenant, event.sender)
    job = Job(id_ or str(new_id()), 0, key, 1, event, headers, pool=pool, finish=finish)
    await Tell(codec, lambda tenant: None).run(job)
    assert job.finished


async def subscribe(pool: Pool, owner: Owner, kind: str) -> None:
    async with pool.connection() as conn:
        assert await outgoing.subscribe(conn, owner, "webhook", "https://workbot.invalid/", "s", [kind], "eve")


def told(home: Home, tenant: str) -> list[tuple[object, ...]]:
    return home.rows(
        "select audience_kind, audience, about, title from notifications where tenant = %s order by seq", tenant
    )


async def test_what_a_sender_was_told_and_what_others_were_told_of_them_goes(
    owner: Connection, home: Home, pool: Pool, codec: Codec, tenant: str
) -> None:
    """Bob in the same tenant and Ann in another keep theirs, and the teams what they were told of them."""
    ann, bob, other = Key(tenant, "ann"), Key(tenant, "bob"), Key(f"{tenant}-b", "ann")
    for who in (ann, bob, other):
        await subscribe(pool, Owner(who.tenant, "person", who.sender), "document_approved")
    for scope in (tenant, other.tenant):
        await subscribe(pool, Owner(scope, "team", "it"), "request_created")
    for who in (ann, bob, other):
        await tell(pool, codec, request(*who, title=f"of {who.sender}"))
        await tell(pool, codec, read(*who))
        await tell(pool, codec, read(*who, "waiting_for_review"))
    for who in (ann, bob, other):
        async with pool.connection() as conn:
            sight = Sight(who.tenant, who.sender, staff=True)
            (newest,) = await inbox.page(conn, sight, inbox.Wanted(), below=None, limit=1)
            assert await inbox.mark_read_up_to(conn, sight, newest.id)
    rest = [row for row in told(home, tenant) if row[2] == "bob"]
    kept = {who: await erasure.count(owner, who) for who in (bob, other)}

    # Ann has read Bob's team notifications, too: two. A team's delivery travels under the team's key.
    whole = NOTHING | {
        "deliveries": 2,
        "notifications": 4,
        "how far they have read": 1,
        "notes of what they read": 6,
        "subscriptions": 1,
        "events in the outbox": 1,
    }
    assert await erasure.count(owner, ann) == whole
    assert await erase(owner, ann) == whole
    assert await erasure.count(owner, ann) == NOTHING
    assert await erase(owner, ann) == NOTHING
    assert told(home, tenant) == rest
    assert len(rest) == 4
    # Bob had read what the teams were told of Ann: two.
    assert await erasure.count(owner, bob) == kept[bob] | {
        "notes of what they read": kept[bob]["notes of what they read"] - 2
    }
    assert await erasure.count(owner, other) == kept[other]


async def test_a_subscription_that_is_committed_late_goes_too(
    owner: Connection, pool: Pool, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is from before the moment, and nobody sees it until afterwards."""
    looks, waits, look = [], asyncio.Event(), messaging_erasure._writing

    async def looking(conn: Connection, tables: Sequence[str]) -> set[str]:
        looks.append(await look(conn, tables))
        if len(looks) > 1:
            waits.set()
        return looks[-1]

    monkeypatch.setattr(messaging_erasure, "_writing", looking)
    ann = Owner(tenant, "person", "ann")
    async with pool.connection() as conn:
        async with conn.transaction():
            await outgoing.subscribe(conn, ann, "webhook", "https://workbot.invalid/", "s", ["document_read"], "ann")
            erasing = asyncio.create_task(erase(owner, Key(tenant, "ann")))
            waiting = asyncio.create_task(waits.wait())
            await asyncio.wait({erasing, waiting}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert waiting.done()
        assert (await erasing)["subscriptions"] == 1
        assert await outgoing.subscriptions(conn, ann) == []


async def test_an_event_from_before_tells_nobody_afterwards(
    owner: Connection, home: Home, pool: Pool, codec: Codec, tenant: str
) -> None:
    """Unread ones, and whole topics that are replayed; what the sender does after the erasure is news again."""
    before = datetime.now(UTC) - timedelta(seconds=5)
    event = request(tenant, "ann")
    await tell(pool, codec, event, before, "m-1")
    await erase(owner, Key(tenant, "ann"))
    await tell(pool, codec, event, before, "m-1")
    await tell(pool, codec, read(tenant, "ann"), before)
    assert told(home, tenant) == []
    await tell(pool, codec, request(tenant, "bob"), before)
    await tell(pool, codec, request(tenant, "ann"), datetime.now(UTC) + timedelta(seconds=5))
    assert [row[2] for row in told(home, tenant)] == ["bob", "ann"]


async def test_a_delivery_that_was_asked_for_is_not_made(
    owner: Connection, home: Home, pool: Pool, codec: Codec, tenant: str
) -> None:
    await subscribe(pool, Owner(tenant, "person", "ann"), "document_approved")
    await tell(pool, codec, read(tenant, "ann"))
    ((delivery,),) = home.rows("select id from deliveries where tenant = %s", tenant)
    assert isinstance(delivery, UUID)
    await erase(owner, Key(tenant, "ann"))
    event = NotificationDeliveryRequested(delivery_id=str(delivery), tenant=tenant, sender="ann", channel="webhook")

    async def finish(_: Connection) -> bool:
        return True

    job = Job("m-1", 0, Key(tenant, "ann"), 1, event, {}, pool=pool, finish=finish)
    # There is no channel at all: carrying it out would fail.
    await Deliver(pool, Channels({})).run(job)
    assert job.finished
    assert await erasure.count(owner, Key(tenant, "ann")) == NOTHING
