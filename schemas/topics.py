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
from schemas import periods

FILE = Path(__file__).with_name("topics.toml")

MAX_RECORD_BYTES = 1_048_588
"""The largest record a source topic takes: what a broker takes unless told otherwise."""

HEADROOM_BYTES = 64 * 1024
"""What each step aside takes on top: a retry topic more than its source, the dead letters more than both, so that a
record with our own headers always fits, also one that somebody put on the retry topic as large as that takes.
"""

_RETENTION = re.compile(r"([1-9][0-9]{0,4}) (hour|day)s?")

# No hyphens or underscores in what becomes a topic's name: Kafka's metrics cannot tell them from dots.
_TopicName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*(\.[a-z][a-z0-9]*)+$", max_length=100)]
_ConsumerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$", max_length=40)]
_ServiceName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
_GroupName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$", max_length=40)]
_TableName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*$", max_length=40)]
_EventType = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*\.[a-z][a-z0-9_]*$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Consumer(_Table):
    """One reader of a topic: the service that runs it, how its slots are shared, how often a record is tried.

    alias is what the service's own books call it, where it has two consumers of one name: see `Subscription`. group
    is what one reader of several topics reads them in. replay says whether a record may be delivered to it again: not
    to one that counts what it reads.
    """

    service: _ServiceName
    policy: Policy
    backoff: Backoff
    dead_letter_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    alias: _TopicName | None = None
    group: _GroupName | None = None
    replay: bool = True


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
        return int(match[1]) * (periods.DAY_MS if match[2] == "day" else periods.HOUR_MS)

    @property
    def retry_retention_ms(self) -> int:
        """The same of its consumers' retry topics."""
        return -1 if self.until_done else periods.RETRY_DAYS * periods.DAY_MS


class Tables(_Table):
    """The tables of one consumer group: the service that keeps them, and in how many partitions."""

    service: _ServiceName
    names: Annotated[tuple[_TableName, ...], Field(min_length=1)]
    partitions: Annotated[int, Field(ge=1, le=1000)]


class _File(_Table):
    services: Annotated[tuple[_ServiceName, ...], Field(min_length=1)]
    topics: dict[_TopicName, Topic]
    tables: dict[_GroupName, Tables] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Where one consumer sets its dead letters aside, and whose they are."""

    name: str
    source: str
    consumer: str
    service: str


class Topics:
    """All topics: what to create on Kafka, and what each consumer subscribes to."""

    def __init__(
        self, services: tuple[str, ...], topics: Mapping[str, Topic], tables: Mapping[str, Tables] | None = None
    ) -> None:
        self.services = services
        self._topics = dict(topics)
        self._tables = dict(tables or {})

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
            alias=consumers[consumer].alias,
            shared_group=consumers[consumer].group,
        )

    def subscriptions_of(self, group: str) -> list[Subscription]:
        """What the one reader of a shared group takes, in the order of the file."""
        found = [self.subscription(topic, consumer) for topic in self for consumer in self[topic].consumers]
        return [subscription for subscription in found if subscription.group == group]

    def dead_letter_topics(self) -> list[DeadLetterTopic]:
        """Every dead-letter topic with its owner, in the order of the file."""
        return [
            DeadLetterTopic(_dead_letter(name, consumer), name, consumer, owner.service)
            for name, topic in self._topics.items()
            for consumer, owner in topic.consumers.items()
        ]

    def kept_days(self) -> Iterator[tuple[float, str]]:
        """How many days after it was written a record may still be read, by topic: of those that forget by the clock,
        and are read by a consumer.
        """
        for name, topic in self._topics.items():
            if not topic.until_done:
                yield periods.longest_days(topic.retention_ms), name
                for consumer in topic.consumers:
                    yield periods.longest_days(topic.retry_retention_ms), _retry(name, consumer)

    def specs(self) -> list[TopicSpec]:
        """Every topic to create: each source topic, then the retry and dead-letter topic of each consumer; then the
        changelog of each table.
        """
        specs = []
        for name, topic in self._topics.items():
            kept = periods.deleted(topic.retention_ms, MAX_RECORD_BYTES)
            retried = periods.deleted(topic.retry_retention_ms, MAX_RECORD_BYTES + HEADROOM_BYTES)
            specs.append(TopicSpec(name, topic.partitions, kept))
            for consumer in topic.consumers:
                specs.append(TopicSpec(_retry(name, consumer), topic.partitions, retried))
                specs.append(TopicSpec(_dead_letter(name, consumer), topic.partitions, _DEAD_LETTERS))
        specs += [
            TopicSpec(_changelog(group, name), tables.partitions, _CHANGELOG)
            for group, tables in self._tables.items()
            for name in tables.names
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
    return Topics(file.services, file.topics, file.tables)


def _contradictions(file: _File) -> Iterator[str]:
    """What no single field can show: unknown services, an event on two topics, a job nobody finishes."""
    home: dict[str, str] = {}
    booked: dict[tuple[str, str], str] = {}
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
            name_in_books = (table.service, table.alias or consumer)
            if name_in_books in booked:
                yield (
                    f"{at}.consumers.{consumer}: {table.service} has a consumer {name_in_books[1]!r} already, of"
                    f" {booked[name_in_books]}; give both an alias, such as the topic's name and theirs"
                )
            booked.setdefault(name_in_books, name)
        for event in topic.events:
            if event in home:
                yield f"{at}.events: {event!r} already travels on {home[event]}"
            home[event] = name
    for group, tables in file.tables.items():
        if tables.service not in file.services:
            yield f"tables.{group}.service: {tables.service!r} is not one of the services"
        read = {
            name: topic.partitions
            for name, topic in file.topics.items()
            if any(consumer.group == group for consumer in topic.consumers.values())
        }
        if not read:
            yield f"tables.{group}: no consumer has this group"
        for name, partitions in read.items():
            if partitions != tables.partitions:
                yield f"tables.{group}.partitions: {name} has {partitions}; a record and its counts lie in the same"


def _retry(topic: str, consumer: str) -> str:
    return f"{topic}.{consumer}.retry"


def _dead_letter(topic: str, consumer: str) -> str:
    return f"{topic}.{consumer}.dlq"


def _changelog(group: str, table: str) -> str:
    # The name that faust looks for.
    return f"{group}-{table}-changelog"


_DEAD_LETTERS = periods.deleted(periods.DEAD_LETTER_DAYS * periods.DAY_MS, MAX_RECORD_BYTES + 2 * HEADROOM_BYTES)
_CHANGELOG = periods.compacted(MAX_RECORD_BYTES)
