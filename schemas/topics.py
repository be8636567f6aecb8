"""The list of topics, read from topics.toml and checked. Only this module spells retry and dead-letter names."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from messaging.admin import TopicSpec
from messaging.errors import Misconfigured
from messaging.policy import Backoff, Policy, Subscription

FILE = Path(__file__).with_name("topics.toml")

MAX_RECORD_BYTES = 1_048_588
"""The largest record a source topic takes: what a broker takes unless told otherwise."""

HEADROOM_BYTES = 64 * 1024
"""What each step aside takes on top: a retry topic more than its source, the dead letters more than both, so that a
record with our own headers always fits, also one that somebody put on the retry topic as large as that takes.
"""

_SEGMENT_BYTES = 64 * 1024 * 1024
_HOUR_MS = 60 * 60 * 1000
_RETENTION = re.compile(r"([1-9][0-9]{0,4}) (hour|day)s?")

# No hyphens or underscores in what becomes a topic's name: Kafka's metrics cannot tell them from dots.
_TopicName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)+$", max_length=100)]
_ConsumerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$", max_length=40)]
_ServiceName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
_EventType = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*\.[a-z][a-z0-9_]*$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Consumer(_Table):
    """One reader of a topic: the service that runs it, how its slots are shared, how often a record is tried."""

    service: _ServiceName
    policy: Policy
    backoff: Backoff
    dead_letter_share: Annotated[float, Field(gt=0, le=1)] = 0.5


class Topic(_Table):
    """One topic as topics.toml describes it. `key` names what its records are kept in order by."""

    purpose: Annotated[str, StringConstraints(min_length=10)]
    key: Literal["tenant:sender", "tenant:room"]
    partitions: Annotated[int, Field(ge=1, le=1000)]
    retention: str
    producers: Annotated[tuple[_ServiceName, ...], Field(min_length=1)]
    events: Annotated[tuple[_EventType, ...], Field(min_length=1)]
    consumers: dict[_ConsumerName, Consumer] = Field(default_factory=dict)

    @field_validator("retention")
    @classmethod
    def _known_retention(cls, retention: str) -> str:
        if retention != "until done" and not _RETENTION.fullmatch(retention):
            raise ValueError('expected "until done" or a time such as "7 days" or "36 hours"')
        return retention

    @property
    def until_done(self) -> bool:
        """Whether records stay until their one consumer has finished them, and go as its offset moves on."""
        return self.retention == "until done"

    @property
    def retention_ms(self) -> int:
        """How long Kafka keeps a record, in milliseconds; -1 is for ever."""
        match = _RETENTION.fullmatch(self.retention)
        if match is None:
            return -1
        return int(match[1]) * _HOUR_MS * (24 if match[2] == "day" else 1)


class _File(_Table):
    services: Annotated[tuple[_ServiceName, ...], Field(min_length=1)]
    topics: dict[_TopicName, Topic]


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Where one consumer sets its dead letters aside, and whose they are."""

    name: str
    source: str
    consumer: str
    service: str


class Topics:
    """All topics: what to create on Kafka, and what each consumer subscribes to."""

    def __init__(self, services: tuple[str, ...], topics: Mapping[str, Topic]) -> None:
        self.services = services
        self._topics = dict(topics)

    def __iter__(self) -> Iterator[str]:
        """The names of the source topics (without retry and dead-letter topics), in the order of the file."""
        return iter(self._topics)

    def __getitem__(self, name: str) -> Topic:
        """One source topic. Raises Misconfigured when the file has no such topic."""
        try:
            return self._topics[name]
        except KeyError:
            raise Misconfigured(f"topics.toml has no topic {name!r}; it has {', '.join(self._topics)}.") from None

    def subscription(
        self, topic: str, consumer: str, *, policy: Policy | None = None, backoff: Backoff | None = None
    ) -> Subscription:
        """What one consumer reads, and under which promises; `policy` and `backoff` replace the file's.

        Raises Misconfigured when the file has no such topic or consumer.
        """
        consumers = self[topic].consumers
        if consumer not in consumers:
            raise Misconfigured(f"topics.toml has no consumer {consumer!r} of {topic}; add it there first.")
        return Subscription(
            consumer=consumer,
            topic=topic,
            retry_topic=_retry(topic, consumer),
            dead_letter_topic=_dead_letter(topic, consumer),
            policy=policy or consumers[consumer].policy,
            backoff=backoff or consumers[consumer].backoff,
            dead_letter_share=consumers[consumer].dead_letter_share,
        )

    def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """Every dead-letter topic with its owner, in the order of the file."""
        return [
            DeadLetterTopic(_dead_letter(name, consumer), name, consumer, owner.service)
            for name, topic in self._topics.items()
            for consumer, owner in topic.consumers.items()
        ]

    def specs(self) -> list[TopicSpec]:
        """Every topic to create: each source topic, then the retry and dead-letter topic of each consumer."""
        specs = []
        for name, topic in self._topics.items():
            specs.append(_spec(name, topic.partitions, topic.retention_ms, MAX_RECORD_BYTES))
            for consumer in topic.consumers:
                retry, dead = _retry(name, consumer), _dead_letter(name, consumer)
                specs += [
                    _spec(retry, topic.partitions, -1, MAX_RECORD_BYTES + HEADROOM_BYTES),
                    _spec(dead, topic.partitions, -1, MAX_RECORD_BYTES + 2 * HEADROOM_BYTES),
                ]
        return specs


def load(path: Path = FILE) -> Topics:
    """Read the list of topics. Raises Misconfigured naming each field at fault and what is expected of it."""
    try:
        # Through JSON because only there strict mode knows that an array may be a tuple and a table an object.
        file = _File.model_validate_json(json.dumps(tomllib.loads(path.read_text("utf-8")), default=str))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path.name} is not TOML: {error}") from error
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise Misconfigured(f"{path.name} is wrong: {'; '.join(faults)}") from error
    if faults := list(_contradictions(file)):
        raise Misconfigured(f"{path.name} is wrong: {'; '.join(faults)}")
    return Topics(file.services, file.topics)


def _contradictions(file: _File) -> Iterator[str]:
    """What no single field can show: unknown services, an event on two topics, a job nobody finishes."""
    home: dict[str, str] = {}
    for name, topic in file.topics.items():
        at = f"topics.{name}"
        if name.endswith((".retry", ".dlq")):
            yield f"{at}: names ending in .retry or .dlq are made by rule"
        if topic.until_done and len(topic.consumers) != 1:
            yield f"{at}.retention: a topic kept until done needs exactly one consumer, not {len(topic.consumers)}"
        for service in topic.producers:
            if service not in file.services:
                yield f"{at}.producers: {service!r} is not one of the services"
        for consumer, table in topic.consumers.items():
            if table.service not in file.services:
                yield f"{at}.consumers.{consumer}.service: {table.service!r} is not one of the services"
        for event in topic.events:
            if event in home:
                yield f"{at}.events: {event!r} already travels on {home[event]}"
            home[event] = name


def _retry(topic: str, consumer: str) -> str:
    return f"{topic}.{consumer}.retry"


def _dead_letter(topic: str, consumer: str) -> str:
    return f"{topic}.{consumer}.dlq"


def _spec(name: str, partitions: int, retention_ms: int, max_record_bytes: int) -> TopicSpec:
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        # A broker-wide limit on size would drop unread jobs.
        "retention.bytes": "-1",
        "max.message.bytes": str(max_record_bytes),
    }
    if retention_ms == -1:
        # Space of records deleted up to an offset comes back by whole segments: keep them small.
        config["segment.bytes"] = str(_SEGMENT_BYTES)
    return TopicSpec(name, partitions, config)
