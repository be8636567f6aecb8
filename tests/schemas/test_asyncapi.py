"""docs/asyncapi.yaml: made from the sources, a valid AsyncAPI 3.0 document, and true."""

import copy
import dataclasses
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastavro import parse_schema, validate
from pydantic import ValidationError
from typer.testing import CliRunner

from messaging import deadletter, publisher
from messaging.message import Key, header_pairs, new_id
from messaging.telemetry import new_traceparent
from schemas import asyncapi, catalog, events, headers, topics
from schemas.operations import POSTMASTER
from stack import cli, ports
from tests.fixtures.stack import Infra
from tests.schemas.asyncapi_spec import faults, resolve

PUBLISHED: dict[str, Any] = yaml.safe_load(asyncapi.FILE.read_text("utf-8"))
TOPICS = topics.load()
MESSAGES: dict[str, Any] = PUBLISHED["components"]["messages"]


def test_the_file_is_what_the_sources_say() -> None:
    assert asyncapi.is_current(), f"run `{asyncapi.COMMAND}` and commit docs/asyncapi.yaml"
    assert asyncapi.text() == asyncapi.text()


def test_the_text_reads_back_as_the_same_data() -> None:
    assert yaml.safe_load(asyncapi.text()) == asyncapi.document()
    assert list(yaml.safe_load(asyncapi.text())["channels"]) == list(asyncapi.document()["channels"])


def test_the_command_writes_it_and_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, run = tmp_path / "asyncapi.yaml", CliRunner()
    monkeypatch.setattr(asyncapi, "FILE", file)
    command, check = ["schemas", "asyncapi"], ["schemas", "asyncapi", "--check"]
    assert run.invoke(cli.app, check).exit_code == 1
    assert run.invoke(cli.app, command).exit_code == 0
    assert file.read_text("utf-8") == asyncapi.text()
    assert run.invoke(cli.app, check).exit_code == 0
    file.write_text(asyncapi.text().replace("partitions: 6", "partitions: 7", 1), "utf-8")
    assert run.invoke(cli.app, check).exit_code == 1


def test_it_is_as_the_specification_has_it() -> None:
    assert faults(PUBLISHED) == []


def _misspelt(raw: dict[str, Any]) -> None:
    raw["channels"]["documents.jobs"]["adress"] = raw["channels"]["documents.jobs"].pop("address")


def _another_action(raw: dict[str, Any]) -> None:
    next(iter(raw["operations"].values()))["action"] = "publish"


def _no_version(raw: dict[str, Any]) -> None:
    del raw["info"]["version"]


def _text_for_a_number(raw: dict[str, Any]) -> None:
    raw["channels"]["documents.jobs"]["bindings"]["kafka"]["partitions"] = "6"


def _a_stray_property(raw: dict[str, Any]) -> None:
    next(iter(raw["components"]["messages"].values()))["policy"] = {}


@pytest.mark.parametrize(
    "spoil",
    [_misspelt, _another_action, _no_version, _text_for_a_number, _a_stray_property],
    ids=lambda spoil: spoil.__name__,
)
def test_an_object_that_is_not_as_specified_shows(spoil: Callable[[dict[str, Any]], None]) -> None:
    spoilt = copy.deepcopy(PUBLISHED)
    spoil(spoilt)
    with pytest.raises(ValidationError):
        faults(spoilt)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("#/components/schemas/EventHeaders", "#/components/schemas/Nothing", "points at nothing"),
        ("#/channels/documents.events", "#/channels/nowhere", "points at nothing"),
        ("#/servers/kafka", "#/channels/documents.jobs", "is no server"),
        (
            "#/channels/documents.jobs/messages/document.reading_requested.v1",
            "#/channels/documents.events/messages/document.read.v1",
            "is no message of its channel",
        ),
    ],
)
def test_a_reference_to_the_wrong_thing_shows(old: str, new: str, complaint: str) -> None:
    text = asyncapi.text()
    assert f"'{old}'" in text
    assert any(complaint in fault for fault in faults(yaml.safe_load(text.replace(f"'{old}'", f"'{new}'"))))


async def test_the_registry_takes_it_for_a_valid_asyncapi_document(infra: Infra) -> None:
    """The registry's own validator, of another house than ours: everything in order, and three faults found."""
    text = asyncapi.FILE.read_text("utf-8")
    api = infra.registry_url.split("/apis/")[0] + "/apis/registry/v3/groups"
    group = f"test-{uuid.uuid4().hex}"
    async with httpx.AsyncClient(base_url=f"{api}/{group}", trust_env=False, timeout=30.0) as registry:

        async def offer(content: str) -> httpx.Response:
            version = {"content": {"content": content, "contentType": "application/x-yaml"}}
            artifact = {"artifactId": uuid.uuid4().hex, "artifactType": "ASYNCAPI", "firstVersion": version}
            return await registry.post("/artifacts", json=artifact, params={"dryRun": "true"})

        async with httpx.AsyncClient(trust_env=False) as outside:
            (await outside.post(api, json={"groupId": group})).raise_for_status()
        (await registry.post("/rules", json={"ruleType": "VALIDITY", "config": "FULL"})).raise_for_status()
        assert (await offer(text)).status_code == 200
        for old, new, complaint in (
            ("action: send\n", "action: publish\n", "Must be one of: send, receive"),
            ("host: '{address}'\n", "description: nowhere\n", "Server is missing a host"),
            ("'#/channels/documents.jobs'", "'#/channels/nowhere'", "must point to valid channel"),
        ):
            assert old in text
            answer = await offer(text.replace(old, new, 1))
            assert answer.status_code == 400
            assert complaint in answer.text


def test_every_topic_is_a_channel_as_it_is_made_on_kafka() -> None:
    """All but the changelogs of tables: what a service keeps there is its own affair."""
    channels = PUBLISHED["channels"]
    specs = [spec for spec in TOPICS.specs() if spec.config["cleanup.policy"] != "compact"]
    assert list(channels) == [spec.name for spec in specs]
    for spec in specs:
        kafka = channels[spec.name]["bindings"]["kafka"]
        said = kafka["topicConfiguration"]
        assert channels[spec.name]["address"] == kafka["topic"] == spec.name
        assert kafka["partitions"] == spec.partitions
        assert {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in said.items()} == {
            name: spec.config[name] for name in said
        }
    for name in TOPICS:
        assert (channels[name]["description"], channels[name]["x-key"]) == (TOPICS[name].purpose, TOPICS[name].key)


def test_every_major_is_a_message_in_its_newest_minor() -> None:
    assert MESSAGES.keys() == {f"{event.TYPE}.v{event.MAJOR}" for event in events.ALL}
    for contract in catalog.contracts():
        message = MESSAGES[f"{contract.event.TYPE}.v{contract.event.MAJOR}"]
        line = catalog.line(contract.event.TYPE, contract.event.MAJOR)
        assert message["payload"]["schema"] == contract.schema
        assert message["x-subject"] == contract.subject
        assert list(message["x-minors"]) == [f"{version.major}.{version.minor}" for version in line]
        assert all((asyncapi.FILE.parent.parent / file).is_file() for file in message["x-minors"].values())
        assert message["name"] == contract.event.TYPE
    for name in TOPICS:
        on_it = {f"{event.TYPE}.v{event.MAJOR}" for event in events.ALL if name == event.TOPIC}
        assert PUBLISHED["channels"][name]["messages"].keys() == on_it


@pytest.mark.parametrize("name", MESSAGES)
def test_examples_are_values_of_their_schema(name: str) -> None:
    payload = MESSAGES[name]["payload"]
    assert payload["schemaFormat"] == "application/vnd.apache.avro;version=1.9.0"
    for example in MESSAGES[name]["examples"]:
        assert validate(example["payload"], parse_schema(payload["schema"]), strict=True)


def assert_headers(shape: dict[str, Any], found: dict[str, str]) -> None:
    """What JSON Schema says of these headers; only the words that our shapes use."""
    assert shape.keys() == {"type", "required", "properties"}
    assert set(shape["required"]) <= found.keys() <= shape["properties"].keys()
    for name, value in found.items():
        rule = shape["properties"][name]
        assert rule.keys() <= {"type", "description", "pattern", "format", "const"}
        assert rule["type"] == "string"
        assert value == rule.get("const", value)
        assert re.search(rule.get("pattern", ""), value)
        if rule.get("format") == "uuid":
            assert str(uuid.UUID(value)) == value
        if rule.get("format") == "date-time":
            assert datetime.fromisoformat(value).tzinfo is not None


@pytest.mark.parametrize("traceparent", [None, new_traceparent()], ids=["no trace", "traced"])
def test_what_is_written_has_the_headers_that_are_published(traceparent: str | None) -> None:
    """The relay's headers, and those that are added on the way aside."""
    shapes = PUBLISHED["components"]["schemas"]
    row = (1, "t", "k", b"", str(new_id()), "gateway", "request.created", "", "r-1", "1", traceparent)
    written = publisher.headers((*row[:7], datetime.now(UTC).isoformat(), *row[8:]))  # type: ignore[arg-type]
    assert_headers(shapes["EventHeaders"], {name: str(value) for name, value in written})

    def added(raw: list[tuple[str, bytes | None]]) -> dict[str, str]:
        return {name: (value or b"").decode() for name, value in raw if name in deadletter.OURS}

    original = header_pairs([(name, str(value)) for name, value in written])
    again = deadletter.retry_headers(original, origin="t/0/1", due_at=1.5, failures=2, generation=0)
    sent_back = deadletter.sent_back_headers(original, origin="t/0/1", generation=1)
    dead = deadletter.dead_headers(
        original, origin="t/0/1", consumer="reader", reason="unknown_event", error="No.", attempts=1, generation=0
    )
    assert_headers(shapes["RetryHeaders"], added(again))
    assert_headers(shapes["RetryHeaders"], added(sent_back))
    assert_headers(shapes["DeadLetterHeaders"], added(dead))
    assert (
        shapes["RetryHeaders"]["properties"].keys() | shapes["DeadLetterHeaders"]["properties"].keys()
        == deadletter.OURS
    )


def test_a_message_names_its_type_and_its_major_in_its_headers() -> None:
    for event in events.ALL:
        base, own = MESSAGES[f"{event.TYPE}.v{event.MAJOR}"]["headers"]["allOf"]
        assert resolve(PUBLISHED, base["$ref"]) == headers.event()
        assert {name: rule["const"] for name, rule in own["properties"].items()} == {
            "ce_type": event.TYPE,
            "event_version": str(event.MAJOR),
        }


def test_the_key_is_what_a_key_looks_like() -> None:
    for shape in headers.KEYS.values():
        for text in [*shape["examples"], "acme:a:b", "bäckerei-köhler:李雷"]:
            assert str(Key.parse(text.encode())) == text
            assert re.search(shape["pattern"], text)
        for text in ("acme", ":nadia", "acme:"):
            assert not re.search(shape["pattern"], text)


def operations(action: str, channel: str) -> dict[str, dict[str, Any]]:
    """The operations on a channel by their service's name."""
    return {
        operation["tags"][0]["name"]: operation
        for operation in PUBLISHED["operations"].values()
        if (operation["action"], operation["channel"]["$ref"]) == (action, f"#/channels/{channel}")
    }


def test_services_send_and_receive_what_topics_toml_says() -> None:
    newest = {version.type: f"{version.type}.v{version.major}" for version in catalog.versions()}
    for name in TOPICS:
        topic = TOPICS[name]
        senders = operations("send", name)
        assert senders.keys() == set(topic.producers)
        for operation in senders.values():
            written = {ref["$ref"].rpartition("/")[2] for ref in operation["messages"]}
            assert written == {newest[event] for event in topic.events}, "only the newest major is written"
        for consumer, owner in topic.consumers.items():
            sub = TOPICS.subscription(name, consumer)
            (operation,) = (
                one
                for service, one in operations("receive", name).items()
                if one["bindings"]["kafka"]["groupId"]["const"] == sub.group and service == owner.service
            )
            assert operation["x-policy"] == dataclasses.asdict(sub.policy)
            assert operation["x-backoff"] == dataclasses.asdict(sub.backoff)
            assert f"{sub.backoff.attempts} attempts" in operation["description"]
            assert operations("receive", sub.retry_topic).keys() == {owner.service}
            assert POSTMASTER in operations("send", sub.retry_topic)
            assert (owner.service in operations("send", sub.retry_topic)) is not sub.policy.ordered
            assert operations("send", sub.dead_letter_topic).keys() == {owner.service}
            assert operations("receive", sub.dead_letter_topic).keys() == {POSTMASTER}
    assert POSTMASTER in TOPICS.services


def test_the_address_is_the_stacks_usual_one() -> None:
    assert f"127.0.0.1:{ports.DEFAULTS['kafka']}" == asyncapi.USUAL_ADDRESS
