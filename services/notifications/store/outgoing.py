"""Subscriptions, and deliveries to them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from psycopg import sql
from psycopg.rows import class_row

from messaging.database import Connection
from messaging.message import new_id
from services.notifications.notices import Notice
from services.notifications.records import Channel, Delivery, Order, Owner, State, Subscription

_SUBSCRIPTION = sql.SQL(", ").join(sql.Identifier(field.name) for field in fields(Subscription))

# One at a time per owner, so that the limit holds however many are asked for at once.
_LOCK = b"select pg_advisory_xact_lock(hashtextextended(%s, 1))"

_COUNT = b"select count(*) from subscriptions where tenant = %s and owner_kind = %s and owner = %s"

_SUBSCRIBE = sql.SQL("""
insert into subscriptions (id, tenant, owner_kind, owner, channel, address, secret, kinds, created_by)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s)
on conflict (tenant, owner_kind, owner, channel, address) do nothing
returning {columns}
""").format(columns=_SUBSCRIPTION)

_SUBSCRIPTIONS = sql.SQL(
    "select {columns} from subscriptions where tenant = %s and owner_kind = %s and owner = %s order by id"
).format(columns=_SUBSCRIPTION)

_UNSUBSCRIBE = b"""
delete from subscriptions
where tenant = %(tenant)s and id = %(id)s
  and ((owner_kind = 'person' and owner = %(who)s) or (owner_kind = 'team' and %(teams)s))
"""

_DISABLE = b"""
update subscriptions set disabled_at = clock_timestamp()
where disabled_at is null and id = (select subscription from deliveries where id = %s)
"""

_MATCHING = b"""
select n.id, s.id, s.owner_kind, s.owner, s.channel, s.address
from unnest(%(ids)s::uuid[], %(owner_kinds)s::text[], %(owners)s::text[], %(kinds)s::text[])
     as n (id, owner_kind, owner, kind)
join subscriptions s
  on s.tenant = %(tenant)s and s.owner_kind = n.owner_kind and s.owner = n.owner and n.kind = any(s.kinds)
where s.disabled_at is null
order by n.id, s.id
for key share of s
"""

_QUEUE = b"""
insert into deliveries (id, tenant, notification, subscription, owner_kind, owner, channel, address)
values (%s, %s, %s, %s, %s, %s, %s, %s)
"""

_BEGIN = b"""
update deliveries d set state = 'sending', attempts = d.attempts + 1, updated_at = clock_timestamp()
from notifications n
where d.id = %s and d.tenant = %s and d.state <> 'delivered' and n.id = d.notification
returning d.id, d.tenant, d.channel, d.address,
          case when d.subscription is null then 'removed'
               when exists (select from subscriptions s where s.id = d.subscription and s.disabled_at is not null)
               then 'disabled' end as unwanted,
          (select s.secret from subscriptions s where s.id = d.subscription) as secret,
          n.id as notification, n.event_id, n.kind, n.title, n.body, n.href, n.created_at
"""

_END = b"""
update deliveries set state = %(state)s, error = %(error)s, updated_at = clock_timestamp(),
    delivered_at = case when %(state)s::text = 'delivered' then clock_timestamp() end
where id = %(id)s and tenant = %(tenant)s and state <> 'delivered'
"""


@dataclass(frozen=True, slots=True)
class Queued:
    """A delivery that was just written down and has to be asked for."""

    id: UUID
    owner: Owner
    channel: Channel


async def lock_owner(conn: Connection, owner: Owner) -> int:
    """Let nobody else subscribe for this owner until the transaction ends; returns how many subscriptions it has."""
    await conn.execute(_LOCK, (f"{owner.tenant}:{owner.sender}",))
    row = await (await conn.execute(_COUNT, (owner.tenant, owner.kind, owner.name))).fetchone()
    assert row is not None
    count: int = row[0]
    return count


async def subscribe(
    conn: Connection, owner: Owner, channel: Channel, address: str, secret: str | None, kinds: Sequence[str], who: str
) -> Subscription | None:
    """Write a subscription down. None: this owner has one for this address."""
    values = (new_id(), owner.tenant, owner.kind, owner.name, channel, address, secret, list(kinds), who)
    cursor = conn.cursor(row_factory=class_row(Subscription))
    return await (await cursor.execute(_SUBSCRIBE, values)).fetchone()


async def subscriptions(conn: Connection, owner: Owner) -> list[Subscription]:
    """An owner's subscriptions, oldest first."""
    cursor = conn.cursor(row_factory=class_row(Subscription))
    return await (await cursor.execute(_SUBSCRIPTIONS, (owner.tenant, owner.kind, owner.name))).fetchall()


async def unsubscribe(conn: Connection, tenant: str, who: str, subscription: UUID, *, teams: bool) -> bool:
    """Delete one of this person's, or with `teams` one of a team's. False: there is none."""
    parameters = {"tenant": tenant, "id": subscription, "who": who, "teams": teams}
    return (await conn.execute(_UNSUBSCRIBE, parameters)).rowcount == 1


async def queue(conn: Connection, told: Sequence[tuple[UUID, Notice]]) -> list[Queued]:
    """Write down the deliveries of these notifications, all of one tenant, to whoever subscribed to them."""
    if not told:
        return []
    tenant = told[0][1].tenant
    cursor = await conn.execute(
        _MATCHING,
        {
            "tenant": tenant,
            "ids": [notification for notification, _ in told],
            "owner_kinds": [notice.audience_kind for _, notice in told],
            "owners": [notice.audience for _, notice in told],
            "kinds": [notice.kind for _, notice in told],
        },
    )
    rows: list[Any] = [(new_id(), tenant, *row) for row in await cursor.fetchall()]
    if rows:
        async with conn.cursor() as writing:
            await writing.executemany(_QUEUE, rows)
    return [Queued(row[0], Owner(tenant, row[4], row[5]), row[6]) for row in rows]


async def begin(conn: Connection, tenant: str, delivery: UUID) -> Order | None:
    """A run of this delivery begins. None: it has been delivered, or was cleared away."""
    cursor = conn.cursor(row_factory=class_row(Order))
    return await (await cursor.execute(_BEGIN, (delivery, tenant))).fetchone()


async def end(conn: Connection, tenant: str, delivery: UUID, state: State, error: str | None = None) -> None:
    """What became of a run: delivered, queued for another one, or failed."""
    await conn.execute(_END, {"id": delivery, "tenant": tenant, "state": state, "error": error})


async def disable(conn: Connection, delivery: UUID) -> None:
    """Send nothing more to where this delivery went."""
    await conn.execute(_DISABLE, (delivery,))


async def deliveries(
    conn: Connection, tenant: str, *, person: str | None, state: State | None, below: UUID | None, limit: int
) -> list[Delivery]:
    """The tenant's deliveries, or one person's, newest first; `below` is the last id of the page before."""
    conditions: list[sql.Composable] = [sql.SQL("d.tenant = %(tenant)s")]
    if person is not None:
        conditions.append(sql.SQL("d.owner_kind = 'person' and d.owner = %(person)s"))
    if state is not None:
        # Not a parameter: a plan for any state could not use the index, which leaves out the delivered.
        conditions.append(sql.SQL("d.state = {}").format(sql.Literal(state)))
    if below is not None:
        conditions.append(sql.SQL("d.id < %(below)s"))
    query = sql.SQL(
        "select d.id, d.notification, d.subscription, d.owner_kind, d.owner, d.channel, d.address, n.kind, n.title,"
        " d.state, d.attempts, d.error, d.created_at, d.updated_at, d.delivered_at"
        " from deliveries d join notifications n on n.id = d.notification"
        " where {where} order by d.id desc limit %(limit)s"
    ).format(where=sql.SQL(" and ").join(conditions))
    cursor = conn.cursor(row_factory=class_row(Delivery))
    parameters = {"tenant": tenant, "person": person, "below": below, "limit": limit}
    await cursor.execute(query, parameters)
    return await cursor.fetchall()
