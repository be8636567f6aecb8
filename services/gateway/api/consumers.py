"""How far each consumer is, over HTTP."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from messaging.lag import Lag, PartitionLag, Place
from messaging.policy import Subscription
from schemas.topics import Consumer, Topics
from web.openapi import answers
from web.tokens import STAFF, Bearer, Identity, require

PATH = "/api/admin/consumers"
FRESH_SECONDS = 2.0


class ConsumerView(BaseModel):
    """One consumer over its topic and its retry topic. `lag` and `oldest_seconds` are those of all partitions."""

    consumer: str
    topic: str
    service: str
    group: str
    lag: int
    oldest_seconds: float | None
    partitions: list[PartitionLag]


class ConsumersView(BaseModel):
    """Every consumer of topics.toml. `at` is when Kafka was asked, Unix time in seconds."""

    at: float
    consumers: list[ConsumerView]


class Consumers:
    """Asks Kafka, and gives the same answer for a while."""

    def __init__(self, lag: Lag, topics: Topics) -> None:
        self._lag = lag
        self._topics = topics
        self._recent: ConsumersView | None = None
        self._fresh_until = 0.0
        self._asking = asyncio.Lock()

    async def view(self) -> ConsumersView:
        """The picture, given again for FRESH_SECONDS. Raises Outage (resource "kafka")."""
        async with self._asking:
            if self._recent is None or time.monotonic() > self._fresh_until:
                self._recent = await self._ask()
                # From its arrival on: when Kafka is slow, it must not be asked the more often.
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return self._recent

    async def _ask(self) -> ConsumersView:
        subscriptions = [
            (self._topics.subscription(topic, consumer), table)
            for topic in self._topics
            for consumer, table in self._topics[topic].consumers.items()
        ]
        groups: dict[str, list[Place]] = {}
        for subscription, _ in subscriptions:
            # One group may read several topics.
            groups.setdefault(subscription.group, []).extend(
                (topic, number)
                for topic in (subscription.topic, subscription.retry_topic)
                for number in range(self._topics[subscription.topic].partitions)
            )
        at = time.time()
        found = await self._lag.of(groups)
        return ConsumersView(
            at=at,
            consumers=[
                _view(subscription, table, found[subscription.group]) for subscription, table in subscriptions
            ],
        )


def _view(subscription: Subscription, table: Consumer, of_group: Sequence[PartitionLag]) -> ConsumerView:
    own = [part for part in of_group if part.topic in (subscription.topic, subscription.retry_topic)]
    return ConsumerView(
        consumer=subscription.consumer,
        topic=subscription.topic,
        service=table.service,
        group=subscription.group,
        lag=sum(part.lag for part in own),
        oldest_seconds=max((part.oldest_seconds for part in own if part.oldest_seconds is not None), default=None),
        partitions=own,
    )


def router(bearer: Bearer, consumers: Consumers) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["consumers"])

    @routes.get(
        PATH,
        responses=answers(403),
        summary="Position, end, lag and age of the oldest unread record, by consumer and partition",
    )
    async def get(who: Annotated[Identity, Depends(bearer)]) -> ConsumersView:
        require(who, STAFF)
        return await consumers.view()

    return routes
