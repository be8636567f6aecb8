"""What Kafka says of the topics that rows name: whether they exist, and how large a batch each takes."""

import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

from messaging.admin import admin_client

DEFAULT_LIMIT = 1_048_588
"""Kafka's own default of max.message.bytes."""

GRACE_SECONDS = 3.0
"""How long a topic nobody has seen yet may still appear before its rows are refused."""

_AGAIN_SECONDS = 1.0
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION})
_SILENT = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})


class Destinations:
    """Remembers what it was told; `forget` a topic when Kafka's behaviour says that it changed."""

    def __init__(self, bootstrap: str, waiting: Callable[[], None]) -> None:
        """`waiting` is called several times a second while Kafka does not answer; it may raise to give up."""
        self._client = admin_client(bootstrap)
        self._waiting = waiting
        self._limits: dict[str, int] = {}
        self._absent: dict[str, float] = {}

    def limit(self, topic: str) -> int | None:
        """The topic's max.message.bytes; None when there is no such topic. Waits for as long as Kafka is away."""
        if topic in self._limits:
            return self._limits[topic]
        asked_at = self._absent.get(topic)
        if asked_at is not None and time.monotonic() < asked_at + _AGAIN_SECONDS:
            return None
        give_up_at = time.monotonic() + (GRACE_SECONDS if asked_at is None else 0.0)
        while True:
            try:
                self._limits[topic] = self._ask(topic)
                self._absent.pop(topic, None)
                return self._limits[topic]
            except KafkaException as error:
                if error.args[0].code() in _ABSENT:
                    if time.monotonic() >= give_up_at:
                        self._absent[topic] = time.monotonic()
                        return None
                elif error.args[0].code() not in _SILENT:
                    self._limits[topic] = DEFAULT_LIMIT
            self._waiting()
            time.sleep(0.1)

    def forget(self, topic: str) -> None:
        """Ask again before the next record for this topic."""
        self._limits.pop(topic, None)

    def _ask(self, topic: str) -> int:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (answer,) = self._client.describe_configs([resource], request_timeout=5.0).values()
        while True:
            try:
                return int(answer.result(0.2)["max.message.bytes"].value)
            except FutureTimeout:
                self._waiting()
