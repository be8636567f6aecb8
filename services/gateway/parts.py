"""What the two processes are made of. Each part is opened on the given stack, which closes them in reverse."""

from contextlib import AsyncExitStack
from pathlib import Path

from fastapi import FastAPI
from starlette.routing import Route

from messaging import admin, migrate
from messaging.database import Pool, make_pool
from messaging.lag import Lag
from messaging.policy import Subscription
from messaging.producer import ConfirmedProducer
from messaging.timers import Timers
from schemas import topics
from schemas.topics import Topics
from services.gateway import upkeep
from services.gateway.api import consumers, letters, workers
from services.gateway.decisions import Decisions
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
DOCUMENTS = "/api/documents"


async def open_pool(stack: AsyncExitStack, settings: GatewaySettings, name: str, *, autocommit: bool) -> Pool:
    """The database, verified."""
    pool = make_pool(settings, name, autocommit=autocommit)
    stack.push_async_callback(pool.close)
    await pool.open()
    await migrate.verify(pool, [MIGRATIONS])
    return pool


def subscriptions(known: Topics) -> dict[tuple[str, str], Subscription]:
    """Every consumer there is, by its topic and its name."""
    return {
        (letter.source, letter.consumer): known.subscription(letter.source, letter.consumer)
        for letter in known.dead_letter_topics()
    }


def open_upstream(stack: AsyncExitStack, settings: GatewaySettings) -> Upstream:
    """The documents API."""
    upstream = Upstream(settings.documents_url, settings.upstream_timeout_seconds)
    stack.push_async_callback(upstream.close)
    return upstream


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


def make_api_face(
    settings: GatewaySettings, pool: Pool, bearer: Bearer, upstream: Upstream, lag: Lag, known: Workers
) -> FastAPI:
    """The public origin."""
    listed = topics.load()
    face = make_face("Gateway", live={}, ready={"database": _answers(pool)}, pace=pace(settings))
    decisions = Decisions(pool, subscriptions(listed).keys())
    face.include_router(letters.router(pool, bearer, decisions, settings.operator_tenant))
    face.include_router(consumers.router(bearer, consumers.Consumers(lag, listed)))
    face.include_router(workers.router(bearer, known))
    documents = Forwarding("documents", upstream, bearer, settings.upstream_timeout_seconds)
    for path in (DOCUMENTS, DOCUMENTS + "/{rest:path}"):
        face.router.routes.append(Route(path, documents))
    return face


def make_worker_face(pool: Pool, projector: Projector, sender: Sender, timers: Timers) -> FastAPI:
    """How the worker is. One that waits for a server that is away is alive."""
    live: dict[str, Check] = {
        "projector": projector.healthy,
        "sender": sender.healthy,
        "timers": timers.healthy,
    }
    return make_face("Gateway worker", live=live, ready={"database": _answers(pool)})


async def start_projector(stack: AsyncExitStack, settings: GatewaySettings, pool: Pool) -> Projector:
    """Copies dead letters into the table."""
    known = topics.load()
    await admin.verify_topics(settings.kafka_bootstrap, known.specs())
    projector = Projector(settings.kafka_bootstrap, settings.dead_letter_group, known.dead_letter_topics(), pool)
    stack.push_async_callback(projector.stop)
    projector.start()
    return projector


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
    timers = Timers(pool, upkeep.timers(settings.letter_retention_days))
    stack.push_async_callback(timers.stop)
    timers.start()
    return timers


def _answers(pool: Pool) -> Check:
    async def database() -> bool:
        async with pool.connection() as conn:
            await conn.execute("select 1")
        return True

    return database
