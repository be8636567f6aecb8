"""What the two processes are made of. Each part is opened on the given stack, which closes them in reverse."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from messaging import admin, migrate, schemaids
from messaging.codec import Codec
from messaging.consumer import FairConsumer, Limits
from messaging.database import Pool, conninfo, make_pool
from messaging.patience import waited_out
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer
from messaging.readers import EventReader
from messaging.registry import Registry
from messaging.relay import Relay
from messaging.settings import read_secret
from messaging.timers import Timers
from schemas import catalog, topics
from schemas.events import DocumentFailed, DocumentRead, DocumentReadingRequested, DocumentReceived
from services.documents import store, upkeep
from services.documents.api import router
from services.documents.extraction import Extraction
from services.documents.handlers import HANDLERS
from services.documents.intake import Intake
from services.documents.pages import Pages
from services.documents.providers import BuiltinReader, CompatibleReader, Provider
from services.documents.settings import DocumentsSettings
from services.documents.sources import Sources
from services.documents.storage import LocalStorage
from web import queues
from web.bodies import pace
from web.faces import make_face
from web.outbound import Resolver
from web.probes import Check
from web.tokens import Bearer

MIGRATIONS = Path(__file__).parent / "migrations"
WRITES = (DocumentReadingRequested, DocumentReceived, DocumentRead, DocumentFailed)
JOBS = "documents.jobs"
READER = "reader"
RELAY = "documents"


@dataclass(frozen=True, slots=True)
class Base:
    """What both processes stand on."""

    pool: Pool
    codec: Codec
    storage: LocalStorage

    async def database_answers(self) -> bool:
        """For the readiness check."""
        async with self.pool.connection() as conn:
            return await store.answers(conn)


async def open_base(stack: AsyncExitStack, settings: DocumentsSettings, name: str, *, autocommit: bool) -> Base:
    """The database, verified; the codec, not prepared yet; the storage."""
    pool = make_pool(settings, name, autocommit=autocommit)
    stack.push_async_callback(pool.close)
    await pool.open()
    await waited_out("look at the database", lambda: migrate.verify(pool, [MIGRATIONS]))
    registry = Registry(settings.registry_url)
    stack.push_async_callback(registry.close)
    codec = catalog.codec(registry)
    codec.expect(WRITES)
    storage = LocalStorage(settings.storage_dir)
    stack.callback(storage.close)
    await storage.open()
    return Base(pool, codec, storage)


async def prepare(stack: AsyncExitStack, base: Base) -> None:
    """Learn the ids of all we write, without which nothing is taken in. A registry that is away is waited for."""
    await schemaids.learn(stack, base.codec, WRITES, base.pool)


def make_api_face(settings: DocumentsSettings, base: Base, bearer: Bearer) -> FastAPI:
    """The inbox over HTTP."""
    ready: dict[str, Check] = {"database": base.database_answers, "schemas": base.codec.prepared}
    face = make_face("Documents", live={}, ready=ready, pace=pace(settings))
    face.include_router(router(Intake(base.pool, base.storage, base.codec, settings), base.pool, bearer, settings))
    return face


def make_worker_face(base: Base, relay: Relay, timers: Timers, consumer: FairConsumer, bearer: Bearer) -> FastAPI:
    """How the worker is, and what waits there. A reader that waits for a server is alive, though not ready."""
    live: dict[str, Check] = {"relay": relay.healthy, "timers": timers.healthy}
    ready: dict[str, Check] = {"reader": consumer.healthy, "database": base.database_answers}
    face = make_face("Documents worker", live=live, ready=ready)
    face.include_router(queues.router(bearer, {READER: consumer.queue}))
    return face


def start_relay(stack: AsyncExitStack, settings: DocumentsSettings) -> Relay:
    """Carries the outbox to Kafka; leads or stands by."""
    relay = Relay(_conninfo(settings, "documents-relay"), settings.kafka_bootstrap, RELAY)
    stack.callback(relay.stop)
    relay.start()
    return relay


def start_timers(stack: AsyncExitStack, settings: DocumentsSettings, base: Base) -> Timers:
    """The claimed timers."""
    timers = Timers(base.pool, upkeep.timers(settings, base.storage))
    stack.push_async_callback(timers.stop)
    timers.start()
    return timers


async def make_consumer(stack: AsyncExitStack, settings: DocumentsSettings, base: Base) -> FairConsumer:
    """The reader of documents, with all it reads with; not open yet, and so without work."""
    extraction = Extraction(settings.reading_processes, settings.reading_deadline_seconds)
    stack.push_async_callback(extraction.close)
    await extraction.start()
    pages = Pages(
        allow=settings.fetch_allow,
        max_bytes=settings.max_document_bytes,
        timeout_seconds=settings.fetch_timeout_seconds,
        resolve=Resolver(settings.reader_total),
    )
    stack.push_async_callback(pages.aclose)
    provider = _provider(settings, extraction)
    stack.push_async_callback(provider.aclose)
    sources = Sources(base.storage, pages, extraction)
    handlers = {
        event: handler(base.pool, base.codec, sources, provider, settings.confidence_bar)
        for event, handler in HANDLERS.items()
    }
    producer = ConfirmedProducer(settings.kafka_bootstrap, "documents-reader")
    stack.push_async_callback(producer.close)
    producer.open()
    known = topics.load()
    return FairConsumer(
        known.subscription(JOBS, READER, policy=settings.policy()),
        EventReader(base.codec, handlers),
        bootstrap=settings.kafka_bootstrap,
        producer=producer,
        pool=base.pool,
        presence=Presence(_conninfo(settings, "documents-presence"), READER),
        limits=Limits(drain_seconds=settings.drain_seconds),
        until_done=known[JOBS].until_done,
    )


async def open_consumer(stack: AsyncExitStack, settings: DocumentsSettings, consumer: FairConsumer) -> None:
    """Join the group and begin to work, once the servers are there and the topics as the deploy step makes them."""
    specs = topics.load().specs()
    await waited_out("look at the topics", lambda: admin.verify_topics(settings.kafka_bootstrap, specs))
    await waited_out("register as a worker", consumer.open)
    stack.push_async_callback(consumer.close)


def _provider(settings: DocumentsSettings, extraction: Extraction) -> Provider:
    if settings.model_url is None:
        return BuiltinReader(extraction)
    key = None if settings.model_key_file is None else read_secret(settings.model_key_file, "the model's API key")
    connections = 2 * settings.reader_total
    return CompatibleReader(settings.model_url, settings.model_name, key, settings.model_timeout_seconds, connections)


def _conninfo(settings: DocumentsSettings, application: str) -> str:
    return conninfo(settings.database_url, settings.database_password_file, application)
