import asyncio
import socket
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from messaging import admin
from messaging.admin import TopicSpec, admin_client, create_topics, delete_records, verify_topics
from messaging.errors import Misconfigured, Outage
from tests.fixtures.stack import Infra

DAY = {"retention.ms": "86400000", "max.message.bytes": "1048588"}


@pytest.fixture
def bootstrap(infra: Infra) -> str:
    return str(infra.kafka_bootstrap)


@pytest.fixture
def client(bootstrap: str) -> AdminClient:
    return admin_client(bootstrap)


@pytest.fixture
def specs(client: AdminClient) -> Iterator[list[TopicSpec]]:
    """Three topics of this test's own that do not exist yet; gone afterwards."""
    run = uuid.uuid4().hex
    wanted = [TopicSpec(f"t{run}.{name}", 2, DAY) for name in ("a", "b", "c")]
    yield wanted
    for future in client.delete_topics([spec.name for spec in wanted]).values():
        future.exception(timeout=15)


def setting(client: AdminClient, topic: str, name: str) -> str:
    (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return str(future.result(timeout=15)[name].value)


def set_by_hand(client: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (future,) = client.incremental_alter_configs([resource]).values()
    future.result(timeout=15)


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(15) == 0


async def test_missing_topics_are_made_as_specified(
    bootstrap: str, client: AdminClient, specs: list[TopicSpec]
) -> None:
    with pytest.raises(Misconfigured, match=rf"missing: {specs[0].name}, .*Run the deploy step"):
        await verify_topics(bootstrap, specs)
    assert await create_topics(bootstrap, specs) == [f"created {spec.name}" for spec in specs]
    await verify_topics(bootstrap, specs)
    assert setting(client, specs[0].name, "retention.ms") == "86400000"


async def test_a_second_run_changes_nothing(bootstrap: str, specs: list[TopicSpec]) -> None:
    await create_topics(bootstrap, specs)
    assert await create_topics(bootstrap, specs) == []


async def test_three_deploy_steps_at_once_end_with_all_topics(bootstrap: str, specs: list[TopicSpec]) -> None:
    runs = await asyncio.gather(*(create_topics(bootstrap, specs) for _ in range(3)))
    assert sorted(line for lines in runs for line in lines) == [f"created {spec.name}" for spec in specs]
    await verify_topics(bootstrap, specs)


async def test_a_setting_that_drifted_is_put_back_and_others_are_left(
    bootstrap: str, client: AdminClient, specs: list[TopicSpec]
) -> None:
    await create_topics(bootstrap, specs)
    set_by_hand(client, specs[1].name, "retention.ms", "1000")
    set_by_hand(client, specs[1].name, "segment.bytes", "33554432")
    with pytest.raises(Misconfigured, match=rf"{specs[1].name} has retention.ms=1000, not 86400000"):
        await verify_topics(bootstrap, specs)
    assert await create_topics(bootstrap, specs) == [f"set {specs[1].name}: retention.ms=86400000"]
    await verify_topics(bootstrap, specs)
    assert setting(client, specs[1].name, "segment.bytes") == "33554432"


async def test_another_number_of_partitions_needs_a_person(
    bootstrap: str, client: AdminClient, specs: list[TopicSpec]
) -> None:
    """And nothing else is touched before that person has looked."""
    await create_topics(bootstrap, specs[:1])
    wanted = [TopicSpec(specs[0].name, 3, {"retention.ms": "1"}), specs[1]]
    with pytest.raises(Misconfigured, match=f"{specs[0].name} has 2, not 3"):
        await create_topics(bootstrap, wanted)
    assert setting(client, specs[0].name, "retention.ms") == "86400000"
    with pytest.raises(Misconfigured, match=f"missing: {specs[1].name}"):
        await verify_topics(bootstrap, specs[:2])
    with pytest.raises(Misconfigured, match=f"{specs[0].name} has 2, not 3"):
        await verify_topics(bootstrap, wanted[:1])


async def test_a_setting_kafka_does_not_know_is_refused(bootstrap: str, specs: list[TopicSpec]) -> None:
    with pytest.raises(Misconfigured, match="Kafka refused to create topics"):
        await create_topics(bootstrap, [TopicSpec(specs[0].name, 1, {"retention.msec": "1"})])


async def test_nothing_to_do_is_no_work(bootstrap: str, client: AdminClient) -> None:
    assert await create_topics(bootstrap, []) == []
    await verify_topics(bootstrap, [])
    assert await delete_records(client, {}) == {}


async def test_the_event_loop_runs_on_meanwhile(bootstrap: str, specs: list[TopicSpec]) -> None:
    work = asyncio.create_task(create_topics(bootstrap, specs))
    turns = 0
    while not work.done():
        await asyncio.sleep(0.001)
        turns += 1
    await work
    assert turns > 5


async def test_kafka_away_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_REQUEST_SECONDS", 0.5)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        away = f"127.0.0.1:{port.getsockname()[1]}"
    spec = TopicSpec("anything", 1)
    gone = admin_client(away)
    for call in (
        lambda: create_topics(away, [spec]),
        lambda: verify_topics(away, [spec]),
        lambda: delete_records(gone, {("anything", 0): 1}),
    ):
        with pytest.raises(Outage) as outage:
            await call()
        assert outage.value.resource == "kafka"


async def test_records_go_up_to_the_offset_and_no_further(
    bootstrap: str, client: AdminClient, specs: list[TopicSpec]
) -> None:
    await create_topics(bootstrap, specs[:1])
    topic = specs[0].name
    fill(bootstrap, topic, 10)
    assert await delete_records(client, {(topic, 0): 4}) == {(topic, 0): 4}
    assert await delete_records(client, {(topic, 0): 3, (topic, 1): 0}) == {(topic, 0): 4, (topic, 1): 0}
    with pytest.raises(Misconfigured, match="refused to delete records"):
        await delete_records(client, {(topic, 0): 11})
    assert await delete_records(client, {(topic, 0): 10}) == {(topic, 0): 10}


async def test_records_of_an_unknown_topic_cannot_be_deleted(client: AdminClient) -> None:
    with pytest.raises(Misconfigured):
        await delete_records(client, {(f"t{uuid.uuid4().hex}", 0): 1})


async def test_two_topics_of_different_size_limits_take_different_records(
    bootstrap: str, specs: list[TopicSpec]
) -> None:
    """What a source topic just takes still fits its followers with our headers on it."""
    source, follower = specs[0], TopicSpec(specs[1].name, 2, {**DAY, "max.message.bytes": str(1048588 + 64 * 1024)})
    await create_topics(bootstrap, [source, follower])
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2_000_000})
    errors: dict[str, KafkaError | None] = {}

    def produce(topic: str, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        producer.produce(topic, value, headers=headers, on_delivery=lambda error, _: errors.update({topic: error}))

    largest = b"x" * (1048588 - 200)
    produce(source.name, largest, [])
    produce(follower.name, largest, [("reason", b"y" * (64 * 1024 - 200))])
    assert producer.flush(15) == 0
    assert errors == {source.name: None, follower.name: None}
    produce(source.name, largest, [("reason", b"y" * 1000)])
    assert producer.flush(15) == 0
    refused = errors[source.name]
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
