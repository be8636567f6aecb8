"""Topics on Kafka as the deploy step wants them, and records deleted once they are done."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from messaging.errors import Misconfigured, Outage

T = TypeVar("T")

_REQUEST_SECONDS = 10.0
_APPEAR_SECONDS = 15.0

# What says "not now" rather than "never". KafkaError.retriable() is set for transactions only.
PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_CONTROLLER,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it should be. `config` holds Kafka's topic settings; those it leaves out are not touched."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


def admin_client(bootstrap: str) -> AdminClient:
    """A client for `delete_records`. Keep it as long as it is used: its pending answers die with it."""
    # librdkafka writes to stderr by itself; below "critical" it has nothing that the exceptions do not say.
    return AdminClient(
        {"bootstrap.servers": bootstrap, "socket.timeout.ms": int(_REQUEST_SECONDS * 1000), "log_level": 2}
    )


@contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Raise Kafka's errors as ours: Outage (resource "kafka") for those that pass, Misconfigured for the others."""
    try:
        yield
    except KafkaException as error:
        fault = error.args[0]
        if fault.code() in PASSING:
            raise Outage(f"Kafka did not answer when asked to {doing}: {fault.str()}.", "kafka") from error
        raise Misconfigured(f"Kafka refused to {doing}: {fault.str()}.") from error
    except TimeoutError as error:
        raise Outage(f"Kafka did not answer when asked to {doing}.", "kafka") from error


async def create_topics(bootstrap: str, specs: Sequence[TopicSpec]) -> list[str]:
    """Create the topics that are missing and set the settings that differ; returns one line per change made.

    Several may run at once: each ends with all topics as specified. Raises Misconfigured when a topic exists
    with another number of partitions (keys would move between partitions and lose their order), Outage
    (resource "kafka") when Kafka does not answer.
    """
    return await asyncio.to_thread(_create_topics, bootstrap, specs)


async def verify_topics(bootstrap: str, specs: Sequence[TopicSpec]) -> None:
    """Check that every topic is there as specified, and change nothing.

    Raises Misconfigured naming all that is missing or differs, Outage (resource "kafka") when Kafka does not
    answer.
    """
    await asyncio.to_thread(_verify_topics, bootstrap, specs)


async def delete_records(client: AdminClient, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Delete the records of each (topic, partition) below an offset; returns each one's first offset after that.

    An offset already deleted is fine and changes nothing. Raises Misconfigured for an unknown topic, an offset
    beyond the end or a missing right, Outage (resource "kafka") when Kafka does not answer.
    """
    if not before:
        return {}
    return await asyncio.to_thread(_delete_records, client, before)


def _create_topics(bootstrap: str, specs: Sequence[TopicSpec]) -> list[str]:
    client = admin_client(bootstrap)
    with kafka_errors("create topics"):
        found = _describe(client, specs)
        _check_partitions(specs, found)
        missing = [spec for spec in specs if spec.name not in found]
        created = _create(client, missing)
        if missing:
            _check_partitions(missing, _wait_until_visible(client, missing))
        changes = _config_differences(client, specs)
        _alter(client, changes)
    altered = [
        f"set {name}: " + ", ".join(f"{key}={new}" for key, (_, new) in sorted(change.items()))
        for name, change in changes.items()
    ]
    return [f"created {name}" for name in created] + altered


def _verify_topics(bootstrap: str, specs: Sequence[TopicSpec]) -> None:
    client = admin_client(bootstrap)
    with kafka_errors("look at the topics"):
        found = _describe(client, specs)
        if missing := [spec.name for spec in specs if spec.name not in found]:
            raise Misconfigured(f"Topics are missing: {', '.join(missing)}. Run the deploy step.")
        _check_partitions(specs, found)
        changes = _config_differences(client, specs)
    if changes:
        faults = [
            f"{name} has {key}={old}, not {new}"
            for name, change in changes.items()
            for key, (old, new) in sorted(change.items())
        ]
        raise Misconfigured(f"Topics are not as listed: {'; '.join(faults)}. Run the deploy step.")


def _delete_records(client: AdminClient, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    with kafka_errors("delete records"):
        request = [TopicPartition(topic, partition, offset) for (topic, partition), offset in before.items()]
        answers = client.delete_records(request, request_timeout=_REQUEST_SECONDS)
        return {(part.topic, part.partition): _result(future).low_watermark for part, future in answers.items()}


def _describe(client: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicDescription]:
    """Those of the topics that exist."""
    if not specs:
        return {}
    answers = client.describe_topics(TopicCollection([spec.name for spec in specs]), request_timeout=_REQUEST_SECONDS)
    found = {}
    for name, future in answers.items():
        try:
            found[name] = _result(future)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    return found


def _create(client: AdminClient, specs: Sequence[TopicSpec]) -> list[str]:
    """Create topics; returns those that were ours to create (another deploy step may be faster)."""
    if not specs:
        return []
    wanted = [NewTopic(spec.name, spec.partitions, config=dict(spec.config)) for spec in specs]
    created = []
    for name, future in client.create_topics(wanted, request_timeout=_REQUEST_SECONDS).items():
        try:
            _result(future)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return created


def _wait_until_visible(client: AdminClient, specs: Sequence[TopicSpec]) -> dict[str, TopicDescription]:
    """A created topic is known to the controller first, and to the broker that answers a moment later."""
    deadline = time.monotonic() + _APPEAR_SECONDS
    while True:
        found = _describe(client, specs)
        missing = [spec.name for spec in specs if spec.name not in found]
        if not missing:
            return found
        if time.monotonic() > deadline:
            raise Outage(f"Topics were created and do not appear: {', '.join(missing)}.", "kafka")
        time.sleep(0.1)


def _check_partitions(specs: Sequence[TopicSpec], found: Mapping[str, TopicDescription]) -> None:
    faults = [
        f"{spec.name} has {len(found[spec.name].partitions)}, not {spec.partitions}"
        for spec in specs
        if spec.name in found and len(found[spec.name].partitions) != spec.partitions
    ]
    if faults:
        raise Misconfigured(
            f"Topics have another number of partitions: {'; '.join(faults)}. "
            "It cannot change without moving keys: set the listed number back, or move to a new topic."
        )


def _config_differences(
    client: AdminClient, specs: Sequence[TopicSpec]
) -> dict[str, dict[str, tuple[str | None, str]]]:
    """For each topic, the settings that are not as specified: name to (value found, value wanted)."""
    resources = [ConfigResource(ResourceType.TOPIC, spec.name) for spec in specs if spec.config]
    if not resources:
        return {}
    answers = client.describe_configs(resources, request_timeout=_REQUEST_SECONDS)
    current = {resource.name: _result(future) for resource, future in answers.items()}
    differences = {}
    for spec in specs:
        change: dict[str, tuple[str | None, str]] = {}
        for key, wanted in spec.config.items():
            entry = current[spec.name].get(key)
            if entry is None or entry.value != wanted:
                change[key] = (None if entry is None else entry.value, wanted)
        if change:
            differences[spec.name] = change
    return differences


def _alter(client: AdminClient, changes: Mapping[str, Mapping[str, tuple[str | None, str]]]) -> None:
    if not changes:
        return
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(key, wanted, incremental_operation=AlterConfigOpType.SET)
                for key, (_, wanted) in change.items()
            ],
        )
        for name, change in changes.items()
    ]
    for future in client.incremental_alter_configs(resources, request_timeout=_REQUEST_SECONDS).values():
        _result(future)


def _result(future: "Future[T]") -> T:
    return future.result(timeout=_REQUEST_SECONDS + 5)
