"""What the process is made of. Each part is opened on the given stack, which closes them in reverse."""

from contextlib import AsyncExitStack
from pathlib import Path

from fastapi import FastAPI

from messaging import admin, migrate, upkeep
from messaging.database import Connection, Pool, conninfo, make_pool
from messaging.patience import waited_out
from messaging.producer import ConfirmedProducer
from messaging.registry import Registry
from messaging.timers import Timers, Work
from schemas import catalog, events, topics
from services.analytics import store
from services.analytics.api import router
from services.analytics.bounds import Between
from services.analytics.cube import Cube
from services.analytics.engine import Engine
from services.analytics.erasing import Erasing
from services.analytics.lease import Lease
from services.analytics.settings import AnalyticsSettings
from services.analytics.stream import Counting
from services.analytics.tries import Tries
from web.bodies import pace
from web.faces import make_face
from web.probes import Check
from web.tokens import Bearer

MIGRATIONS = Path(__file__).parent / "migrations"
GROUP = "analytics"


async def open_pool(stack: AsyncExitStack, settings: AnalyticsSettings, name: str) -> Pool:
    """The database, verified."""
    pool = make_pool(settings, name, autocommit=False)
    stack.push_async_callback(pool.close)
    await pool.open()
    await waited_out("look at the database", lambda: migrate.verify(pool, [MIGRATIONS]))
    return pool


def make_engine(stack: AsyncExitStack, settings: AnalyticsSettings, cube: Cube, known: topics.Topics) -> Engine:
    """What counts; not started yet."""
    subscriptions = known.subscriptions_of(GROUP)
    registry = Registry(settings.registry_url)
    stack.push_async_callback(registry.close)
    producer = ConfirmedProducer(settings.kafka_bootstrap, "analytics-dead-letters")
    stack.push_async_callback(producer.close)
    producer.open()
    lease = Lease(conninfo(settings.database_url, settings.database_password_file, "analytics-lease"), GROUP)
    places = [topic for sub in subscriptions for topic in (sub.topic, sub.retry_topic)]
    types = {type_ for sub in subscriptions for type_ in known[sub.topic].events}
    readers = frozenset(event for event in events.ALL if event.TYPE in types)
    keep = settings.keep()
    between = Between(settings.kafka_bootstrap, "analytics-gaps")
    stack.push_async_callback(between.close)
    erasing = Erasing(lease, cube)
    tries = Tries(lease, places)
    counting = Counting(subscriptions, catalog.codec(registry), readers, tries, producer, erasing, cube, keep)
    return Engine(
        GROUP,
        places,
        lease,
        counting,
        erasing,
        cube,
        keep,
        between,
        bootstrap=settings.kafka_bootstrap,
        folder=settings.tables_dir,
    )


async def open_engine(
    stack: AsyncExitStack, settings: AnalyticsSettings, engine: Engine, known: topics.Topics
) -> None:
    """Check that the topics are as the deploy step makes them, once Kafka is there, and begin."""
    specs = known.specs()
    await waited_out("look at the topics", lambda: admin.verify_topics(settings.kafka_bootstrap, specs))
    stack.push_async_callback(engine.stop)
    engine.start()


def start_timers(stack: AsyncExitStack, settings: AnalyticsSettings, pool: Pool) -> Timers:
    """The claimed timers."""
    running = Timers(pool, timers(settings))
    stack.push_async_callback(running.stop)
    running.start()
    return running


def timers(settings: AnalyticsSettings) -> dict[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""
    return {**upkeep.timers(settings), "analytics.forget_erasures": (upkeep.HOUR, _forget_erasures)}


def make_api_face(
    settings: AnalyticsSettings,
    pool: Pool,
    engine: Engine,
    timers: Timers,
    cube: Cube,
    known: topics.Topics,
    bearer: Bearer,
) -> FastAPI:
    """The service over HTTP. A process that stands by, or recovers its tables, is alive and not ready."""
    face = make_face(
        "Analytics",
        live={"stream": engine.healthy, "timers": timers.healthy},
        ready={"tables": engine.ready, "database": _answers(pool)},
        pace=pace(settings),
    )
    types = sorted({type_ for sub in known.subscriptions_of(GROUP) for type_ in known[sub.topic].events})
    face.include_router(router(cube, engine.ready, types, settings.keep(), bearer))
    return face


async def _forget_erasures(conn: Connection) -> None:
    await store.forget_done_erasures(conn, upkeep.DAY)


def _answers(pool: Pool) -> Check:
    async def database() -> bool:
        async with pool.connection() as conn:
            return await store.answers(conn)

    return database
