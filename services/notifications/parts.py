"""What the process is made of. Each part is opened on the given stack, which closes them in reverse."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from messaging import admin, migrate, schemaids
from messaging.codec import Codec
from messaging.consumer import FairConsumer, Limits
from messaging.database import Pool, conninfo, make_pool
from messaging.job import Reader
from messaging.patience import waited_out
from messaging.policy import Subscription
from messaging.presence import Presence
from messaging.producer import ConfirmedProducer
from messaging.readers import EventReader
from messaging.registry import Registry
from messaging.relay import Relay
from messaging.settings import read_secret
from messaging.timers import Timers
from schemas import catalog, topics
from schemas.events import NotificationDeliveryRequested
from services.notifications import notices, upkeep
from services.notifications.api import deliveries, inbox, stream, subscriptions
from services.notifications.bell import Listener, Ringer
from services.notifications.channels import Carrier, Channels
from services.notifications.channels.mail import Mail, MailServer
from services.notifications.channels.webhook import Webhook
from services.notifications.feed import Feed
from services.notifications.handlers import Deliver, Tell, event_handlers
from services.notifications.records import Channel
from services.notifications.settings import NotificationsSettings
from services.notifications.store import inbox as inbox_store
from web import queues
from web.bodies import pace
from web.faces import make_face
from web.outbound import Resolver
from web.probes import Check
from web.tokens import Bearer

MIGRATIONS = Path(__file__).parent / "migrations"
WRITES = (NotificationDeliveryRequested,)
TELLERS = (("documents.events", "notifications"), ("requests.events", "notifications"))
DELIVERER = ("notifications.deliveries", "deliverer")
RELAY = "notifications"


@dataclass(frozen=True, slots=True)
class Base:
    """What the other parts stand on."""

    pool: Pool
    codec: Codec

    async def database_answers(self) -> bool:
        """For the readiness check."""
        async with self.pool.connection() as conn:
            await inbox_store.head(conn, "")
        return True


async def open_base(stack: AsyncExitStack, settings: NotificationsSettings) -> Base:
    """The database, verified; the codec, not prepared yet."""
    pool = make_pool(settings, "notifications-api", autocommit=False)
    stack.push_async_callback(pool.close)
    await pool.open()
    await waited_out("look at the database", lambda: migrate.verify(pool, [MIGRATIONS]))
    registry = Registry(settings.registry_url)
    stack.push_async_callback(registry.close)
    codec = catalog.codec(registry)
    codec.expect(WRITES)
    return Base(pool, codec)


async def prepare(stack: AsyncExitStack, base: Base) -> None:
    """Learn the ids of all we write. A registry that is away is waited for."""
    await schemaids.learn(stack, base.codec, WRITES, base.pool)


def make_api_face(
    settings: NotificationsSettings,
    base: Base,
    feed: Feed,
    relay: Relay,
    timers: Timers,
    consumers: Sequence[FairConsumer],
    bearer: Bearer,
) -> FastAPI:
    """The service over HTTP. A consumer that waits for a server is alive, though not ready."""
    live: dict[str, Check] = {"relay": relay.healthy, "timers": timers.healthy}
    ready: dict[str, Check] = {"database": base.database_answers} | {
        consumer.subscription.name: consumer.healthy for consumer in consumers
    }
    face = make_face("Notifications", live=live, ready=ready, pace=pace(settings))
    face.include_router(stream.router(feed, bearer))
    face.include_router(subscriptions.router(base.pool, bearer, settings))
    face.include_router(deliveries.router(base.pool, bearer))
    face.include_router(inbox.router(base.pool, bearer))
    face.include_router(queues.router(bearer, {consumer.subscription.name: consumer.queue for consumer in consumers}))
    return face


def start_relay(stack: AsyncExitStack, settings: NotificationsSettings) -> Relay:
    """Carries the outbox to Kafka; leads or stands by."""
    relay = Relay(_conninfo(settings, "notifications-relay"), settings.kafka_bootstrap, RELAY)
    stack.callback(relay.stop)
    relay.start()
    return relay


def start_timers(stack: AsyncExitStack, settings: NotificationsSettings, base: Base) -> Timers:
    """The claimed timers."""
    timers = Timers(base.pool, upkeep.timers(settings))
    stack.push_async_callback(timers.stop)
    timers.start()
    return timers


def start_ringer(stack: AsyncExitStack, base: Base) -> Ringer:
    """Wakes those who follow along, in every process."""
    ringer = Ringer(base.pool)
    stack.push_async_callback(ringer.stop)
    ringer.start()
    return ringer


def start_feed(stack: AsyncExitStack, settings: NotificationsSettings, base: Base) -> Feed:
    """Those who follow along here."""
    feed = Feed(base.pool)
    listener = Listener(_conninfo(settings, "notifications-listener"), feed.wake)
    stack.push_async_callback(listener.stop)
    listener.start()
    return feed


def make_consumers(
    stack: AsyncExitStack, settings: NotificationsSettings, base: Base, ringer: Ringer
) -> list[FairConsumer]:
    """All three, not open yet, and so without work."""
    known = topics.load()
    producer = ConfirmedProducer(settings.kafka_bootstrap, "notifications")
    stack.push_async_callback(producer.close)
    producer.open()
    deliverer = known.subscription(*DELIVERER)
    channels = _channels(settings, deliverer.policy.total)
    stack.push_async_callback(channels.aclose)
    tell = Tell(base.codec, ringer.ring)

    def consumer(subscription: Subscription, reader: Reader) -> FairConsumer:
        return FairConsumer(
            subscription,
            reader,
            bootstrap=settings.kafka_bootstrap,
            producer=producer,
            pool=base.pool,
            presence=Presence(_conninfo(settings, "notifications-presence"), subscription.name),
            limits=Limits(drain_seconds=settings.drain_seconds),
            until_done=known[subscription.topic].until_done,
        )

    tellers = [known.subscription(*names) for names in TELLERS]
    return [
        *(consumer(teller, tell_reader(base.codec, teller.topic, tell)) for teller in tellers),
        consumer(deliverer, EventReader(base.codec, {NotificationDeliveryRequested: Deliver(base.pool, channels)})),
    ]


def tell_reader(codec: Codec, topic: str, tell: Tell) -> EventReader:
    """What is told of a topic, and what is left alone."""
    return EventReader(codec, event_handlers(topic, tell), leaves_alone=notices.QUIET)


async def open_consumers(
    stack: AsyncExitStack, settings: NotificationsSettings, consumers: Sequence[FairConsumer]
) -> None:
    """Join the groups and begin to work, once the servers are there and the topics as the deploy step makes them.
    They are closed together: each may take its time to drain."""

    async def close() -> None:
        await asyncio.gather(*(consumer.close() for consumer in opened))

    specs = topics.load().specs()
    await waited_out("look at the topics", lambda: admin.verify_topics(settings.kafka_bootstrap, specs))
    opened: list[FairConsumer] = []
    stack.push_async_callback(close)
    for consumer in consumers:
        await waited_out("register as a worker", consumer.open)
        opened.append(consumer)


def _channels(settings: NotificationsSettings, at_once: int) -> Channels:
    carriers: dict[Channel, Carrier] = {
        "webhook": Webhook(
            public_url=settings.public_url,
            allow=settings.webhook_allow,
            timeout_seconds=settings.webhook_timeout_seconds,
            resolve=Resolver(at_once),
        )
    }
    if settings.smtp_host is not None and settings.smtp_from is not None:
        password = None
        if settings.smtp_password_file is not None:
            password = read_secret(settings.smtp_password_file, "the mail server's password")
        server = MailServer(
            host=settings.smtp_host,
            port=settings.smtp_port,
            tls=settings.smtp_tls,
            user=settings.smtp_user,
            password=password,
            sender=settings.smtp_from,
            timeout_seconds=settings.smtp_timeout_seconds,
        )
        carriers["email"] = Mail(server, public_url=settings.public_url, threads=at_once)
    return Channels(carriers)


def _conninfo(settings: NotificationsSettings, application: str) -> str:
    return conninfo(settings.database_url, settings.database_password_file, application)
