"""The deploy step against the real Kafka and the real registry."""

import asyncio
import json
from pathlib import Path

import pytest

from messaging import admin
from messaging.errors import Misconfigured, UnknownEvent
from messaging.registry import COMPATIBILITY, Registry
from schemas import catalog, deploy, events, topics
from tests.fixtures.stack import Infra


async def test_three_at_once_register_every_version_under_the_same_ids(infra: Infra) -> None:
    runs = await asyncio.gather(*(deploy.register(infra.registry_url) for _ in range(3)))
    assert runs[0] == runs[1] == runs[2]
    assert [line.partition(":")[0] for line in runs[0]] == [
        str(version) for event in events.ALL for version in catalog.line(event.TYPE, event.MAJOR)
    ]
    assert await deploy.register(infra.registry_url) == runs[0]


async def test_every_subject_is_held_to_full_transitive(infra: Infra) -> None:
    await deploy.register(infra.registry_url)
    registry = Registry(infra.registry_url)
    for contract in catalog.contracts():
        assert await registry.compatibility(contract.subject) == COMPATIBILITY
    await registry.close()


async def test_a_process_can_write_and_read_what_was_registered(infra: Infra) -> None:
    await deploy.register(infra.registry_url)
    registry = Registry(infra.registry_url)
    codec = catalog.codec(registry)
    await codec.prepare(events.ALL)
    read = events.DocumentRead(
        document_id="d-1",
        tenant="acme",
        sender="nadia",
        status="approved",
        fields=(events.DocumentField(name="total", value="12.00", confidence=0.9),),
        attempts=1,
        model="built-in",
    )
    headers = {"ce_type": b"document.read", "event_version": b"1"}
    value = codec.encode(read)
    other = Registry(infra.registry_url)
    assert await catalog.codec(other).decode(headers, value, {events.DocumentRead}) == read
    with pytest.raises(UnknownEvent, match="no schema with id 2147483647"):
        await codec.decode(headers, b"\x00\x7f\xff\xff\xff" + value[5:], {events.DocumentRead})
    await registry.close()
    await other.close()


async def test_three_at_once_bring_every_topic(infra: Infra) -> None:
    runs = await asyncio.gather(*(deploy.create_topics(infra.kafka_bootstrap) for _ in range(3)))
    created = [line for lines in runs for line in lines]
    assert len(created) == len(set(created))
    await admin.verify_topics(infra.kafka_bootstrap, topics.load().specs())
    assert await deploy.create_topics(infra.kafka_bootstrap) == []


async def test_a_breaking_file_is_refused_before_the_registry_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens at the address: an answer can only come from the files."""
    monkeypatch.setattr(catalog, "ROOT", tmp_path)
    monkeypatch.setattr(events, "ALL", (events.DocumentReceivedV1,))
    folder = tmp_path / "avro" / "document.received"
    folder.mkdir(parents=True)
    for minor, kind in ((0, "int"), (1, "string")):
        fields = [{"name": "attempts", "type": kind}]
        schema = {"type": "record", "name": "DocumentReceived", "namespace": "workbot.documents.v1", "fields": fields}
        (folder / f"v1.{minor}.avsc").write_text(json.dumps(schema))
    with pytest.raises(Misconfigured, match="version 1 cannot read version 0: attempts: int is not read as string"):
        await deploy.register("http://127.0.0.1:9")
