"""What the two processes are made of. Each part is opened on the given stack, which closes them in reverse."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from fastapi import FastAPI
from starlette.routing import Route

from messaging import admin, migrate, schemaids
from messaging.codec import Codec
from messaging.database import Pool, conninfo, make_pool
from messaging.lag import Lag
from messaging.patience import waited_out
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from messaging.registry import Registry
from messaging.relay import Relay
from messaging.timers import Timers
from schemas import catalog, topics
from schemas.events import RequestCreated
from schemas.topics import Topics
from services.gateway import upkeep
from services.gateway.api import consumers, letters, requests, workers
from services.gateway.decisions import Decisions
from services.gateway.desk import Desk
from services.gateway.forwarding import Forwarding
from services.gateway.projector import Projector
from services.gateway.sender import Sender
from services.gateway.settings import GatewaySettings
from services.gateway.upstream import Upstream
from services.gateway.workers import Workers
from web.bodies import pace
from web.faces import make_face
from web.probes import Check
from web.tokens import Bearer

MIGRATIONS = Path(__file__).parent / "migrations"
WRITES = (RequestCreated,)
RELAY = "gateway"
FORWARDED = {
    "documents": ("/api/documents", "/api/documents/{rest:path}"),
    "notifications": ("/api/notifications", "/api/notifications/{rest:path}"),
    "analytics": ("/api/analytics", "/api/analytics/{rest:path}"),
}
"""The paths of each service behind the gateway."""


async def open_pool(stack: AsyncExitStack, settings: GatewaySettings, name: str, *, autocommit: bool) -> Pool:
    """The database, verified."""
    pool = make_pool(settings, name, autocommit=autocommit)
    stack.push_async_callback(pool.close)
    await pool.open()
    await waited_out("look at the database", lambda: migrate.verify(pool, [MIGRATIONS]))
    return pool


def subscriptions(known: Topics) -> dict[tuple[str, str], Subscription]:
    """Every consumer there is, by its topic and its name."""
    return {
        (letter.source, letter.consumer): known.subscription(letter.source, letter.consumer)
        for letter in known.dead_letter_topics()
    }


def make_codec(stack: AsyncExitStack, settings: GatewaySettings) -> Codec:
    """Not prepared yet: until then no request can be filed."""
    registry = Registry(settings.registry_url)
    stack.push_async_callback(registry.close)
    codec = catalog.codec(registry)
    codec.expect(WRITES)
    return codec


async def prepare(stack: AsyncExitStack, codec: Codec, pool: Pool) -> None:
    """Learn the ids of all we write; from then on no request asks the registry. One that is away is waited for."""
    await schemaids.learn(stack, codec, WRITES, pool)


def open_upstreams(stack: AsyncExitStack, settings: GatewaySettings) -> dict[str, Upstream]:
    """The services behind us, by name."""
    origins = {
        "documents": settings.documents_url,
        "notifications": settings.notifications_url,
        "analytics": settings.analytics_url,
    }
    upstreams = {name: Upstream(origin, settings.upstream_timeout_seconds) for name, origin in origins.items()}
    for upstream in upstreams.values():
        stack.push_async_callback(upstream.close)
    return upstreams


def open_lag(stack: AsyncExitStack, settings: GatewaySettings) -> Lag:
    """Asks Kafka how far the consumers are."""
    lag = Lag(settings.kafka_bootstrap, "gateway-lag")
    stack.push_async_callback(lag.close)
    return lag


def open_workers(stack: AsyncExitStack, settings: GatewaySettings) -> Workers:
    """The workers that are asked for their queues."""
    known = Workers(settings.workers)
    stack.push_async_callback(known.close)
    return known


def make_forwardings(
    settings: GatewaySettings, bearer: Bearer, upstreams: Mapping[str, Upstream]
) -> dict[str, Forwarding]:
    """The endpoint of each service behind us. Close them before the face is left."""
    patience = settings.upstream_timeout_seconds
    return {name: Forwarding(name, upstream, bearer, patience) for name, upstream in upstreams.items()}


def make_api_face(
    settings: GatewaySettings,
    pool: Pool,
    bearer: Bearer,
    codec: Codec,
    forwardings: Mapping[str, Forwarding],
    lag: Lag,
    known: Workers,
) -> FastAPI:
    """The public origin."""
    listed = topics.load()
    forwarded = ", ".join(f"{paths[0]} ({name})" for name, paths in FORWARDED.items())
    face = make_face(
        "Gateway",
        live={},
        ready={"database": _answers(pool), "schemas": codec.prepared},
        pace=pace(settings),
        description=(
            f"These are the gateway's own calls. It also passes on all calls under {forwarded}; each of these "
            "services describes its own at /docs on its own address, which `workbot status` shows."
        ),
    )
    face.include_router(requests.router(pool, bearer, Desk(pool, codec)))
    decisions = Decisions(pool, subscriptions(listed).keys())
    face.include_router(letters.router(pool, bearer, decisions, settings.operator_tenant))
    face.include_router(consumers.router(bearer, consumers.Consumers(lag, listed)))
    face.include_router(workers.router(bearer, known))
    for name, paths in FORWARDED.items():
        for path in paths:
            face.router.routes.append(Route(path, forwardings[name]))
    return face


def make_worker_face(pool: Pool, relay: Relay, projector: Projector, sender: Sender, timers: Timers) -> FastAPI:
    """How the worker is. One that waits for a server that is away is alive."""
    live: dict[str, Check] = {
        "relay": relay.healthy,
        "projector": projector.healthy,
        "sender": sender.healthy,
        "timers": timers.healthy,
    }
    ready: dict[str, Check] = {"database": _answers(pool), "dead letters": projector.started}
    return make_face("Gateway worker", live=live, ready=ready)


def start_relay(stack: AsyncExitStack, settings: GatewaySettings) -> Relay:
    """Carries the outbox to Kafka; leads or stands by."""
    database = conninfo(settings.database_url, settings.database_password_file, "gateway-relay")
    relay = Relay(database, settings.kafka_bootstrap, RELAY)
    stack.callback(relay.stop)
    relay.start()
    return relay


def make_projector(settings: GatewaySettings, pool: Pool) -> Projector:
    """Copies dead letters into the table; not started yet."""
    return Projector(settings.kafka_bootstrap, settings.dead_letter_group, topics.load().dead_letter_topics(), pool)


async def start_projector(stack: AsyncExitStack, settings: GatewaySettings, projector: Projector) -> None:
    """Check that the topics are as the deploy step makes them, once Kafka is there, and begin."""
    specs = topics.load().specs()
    await waited_out("look at the topics", lambda: admin.verify_topics(settings.kafka_bootstrap, specs))
    stack.push_async_callback(projector.stop)
    projector.start()


def start_sender(stack: AsyncExitStack, settings: GatewaySettings, pool: Pool) -> Sender:
    """Sends back what was decided to go back."""
    producer = ConfirmedProducer(settings.kafka_bootstrap, "gateway-sender")
    stack.push_async_callback(producer.close)
    producer.open()
    sender = Sender(producer, pool, subscriptions(topics.load()))
    stack.push_async_callback(sender.stop, settings.drain_seconds)
    sender.start()
    return sender


def start_timers(stack: AsyncExitStack, settings: GatewaySettings, pool: Pool) -> Timers:
    """The claimed timers."""
    timers = Timers(pool, upkeep.timers(settings))
    stack.push_async_callback(timers.stop)
    timers.start()
    return timers


def _answers(pool: Pool) -> Check:
    async def database() -> bool:
        async with pool.connection() as conn:
            await conn.execute("select 1")
        return True

    return database
