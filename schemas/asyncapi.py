"""The published contract: docs/asyncapi.yaml (AsyncAPI 3.0), made of topics.toml, the Avro files and their examples.

`workbot schemas asyncapi` writes it, a test holds it to what is made here. The order is that of topics.toml.
"""

import json
from importlib import metadata

import yaml

from messaging.admin import TopicSpec
from schemas import catalog, headers, topics
from schemas.catalog import Version
from schemas.operations import BINDING, Part, const, operations, ref
from schemas.topics import Topics

FILE = catalog.ROOT.parent / "docs" / "asyncapi.yaml"
COMMAND = "workbot schemas asyncapi"

USUAL_ADDRESS = "127.0.0.1:19092"
"""Where the embedded stack's Kafka is when nobody has moved it."""

_AVRO = "application/vnd.apache.avro;version=1.9.0"


def document() -> Part:
    """The contract as data, made anew from the files. Raises Misconfigured when they are wrong."""
    listed = topics.load()
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "WorkBot events and jobs",
            "version": metadata.version("workbot"),
            "description": (
                f"Made by `{COMMAND}` from schemas/topics.toml, schemas/avro and schemas/examples; do not edit. "
                "A value is Avro behind a zero byte and the writer's schema id in four bytes; the registry keeps the "
                "versions of an event under <topic>-<record's full name>. A reader picks its schema by ce_type and "
                "event_version (the major), reads every minor of it, and ignores fields it does not know."
            ),
        },
        "defaultContentType": "application/avro",
        "servers": {
            "kafka": {
                "host": "{address}",
                "protocol": "kafka",
                "description": "The cluster all services use.",
                "variables": {
                    "address": {
                        "default": USUAL_ADDRESS,
                        "description": "Bootstrap servers; `workbot status --json` has those of an embedded stack.",
                    }
                },
            }
        },
        "channels": _channels(listed),
        "operations": operations(listed, _read(listed), _written(listed)),
        "components": {
            "messages": {_id(newest): _message(listed, line) for line in _lines(listed) for newest in line[-1:]},
            "schemas": {
                "EventHeaders": headers.event(),
                "RetryHeaders": headers.retry(),
                "DeadLetterHeaders": headers.dead_letter(),
            },
        },
    }


def text() -> str:
    """The contract as the file has it."""
    # Through JSON: what two places share would else be written once, with an anchor.
    plain = json.loads(json.dumps(document()))
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110))


def write() -> bool:
    """Bring the file up to date; returns whether that changed it."""
    if is_current():
        return False
    FILE.write_text(text(), "utf-8")
    return True


def is_current() -> bool:
    """Whether the file says what the sources say."""
    return FILE.is_file() and FILE.read_text("utf-8") == text()


def _lines(listed: Topics) -> list[list[Version]]:
    """Every (type, major) that travels, in the order of topics.toml; each with its minors, oldest first."""
    majors = dict.fromkeys((version.type, version.major) for version in catalog.versions())
    return [
        catalog.line(type_, major)
        for name in listed
        for event in listed[name].events
        for type_, major in majors
        if type_ == event
    ]


def _read(listed: Topics) -> dict[str, list[str]]:
    """By topic: the messages a reader of it meets, every major of every event."""
    lines = _lines(listed)
    return {name: [_id(line[-1]) for line in lines if line[-1].type in listed[name].events] for name in listed}


def _written(listed: Topics) -> dict[str, list[str]]:
    """By topic: the messages that are still written, the newest major of every event."""
    newest = {version.type: version for version in catalog.versions()}  # oldest first, so that the newest stays
    return {name: [_id(newest[event]) for event in listed[name].events] for name in listed}


def _channels(listed: Topics) -> Part:
    specs = {spec.name: spec for spec in listed.specs()}
    found, read = {}, _read(listed)
    for name in listed:
        topic = listed[name]
        messages = {message: ref("components", "messages", message) for message in read[name]}
        found[name] = _channel(specs[name], topic.purpose, messages) | {
            "x-key": topic.key,
            "x-retention": topic.retention,
        }
        for consumer in topic.consumers:
            sub = listed.subscription(name, consumer)
            for aside, purpose, extra in (
                (
                    sub.retry_topic,
                    f"Records that {consumer} is to run again: failed in a way that may pass, or sent back by staff.",
                    "RetryHeaders",
                ),
                (
                    sub.dead_letter_topic,
                    f"Records that {consumer} gave up, byte for byte, with the reason in headers of their own.",
                    "DeadLetterHeaders",
                ),
            ):
                found[aside] = _channel(specs[aside], purpose, messages) | {
                    "x-key": topic.key,
                    "x-headers-on-top": ref("components", "schemas", extra),
                }
    return found


def _channel(spec: TopicSpec, purpose: str, messages: Part) -> Part:
    config = spec.config
    return {
        "address": spec.name,
        "description": purpose,
        "servers": [ref("servers", "kafka")],
        "messages": dict(messages),
        "bindings": {
            "kafka": {
                "topic": spec.name,
                "partitions": spec.partitions,
                "topicConfiguration": {
                    "cleanup.policy": config["cleanup.policy"].split(","),
                    **{name: int(config[name]) for name in ("retention.ms", "retention.bytes", "max.message.bytes")},
                },
                "bindingVersion": BINDING,
            }
        },
    }


def _message(listed: Topics, line: list[Version]) -> Part:
    version, schema = line[-1], line[-1].schema()
    (home,) = (name for name in listed if version.type in listed[name].events)
    return {
        "name": version.type,
        "title": schema["name"],
        "summary": schema["doc"],
        "headers": {
            "allOf": [
                ref("components", "schemas", "EventHeaders"),
                {
                    "type": "object",
                    "properties": {"ce_type": const(version.type), "event_version": const(str(version.major))},
                },
            ]
        },
        "payload": {"schemaFormat": _AVRO, "schema": schema},
        "bindings": {
            "kafka": {
                # Written out: the official JSON Schema takes a reference here for a schema as well, and refuses both.
                "key": headers.KEYS[listed[home].key],
                "schemaIdLocation": "payload",
                "schemaIdPayloadEncoding": "confluent",
                "schemaLookupStrategy": "TopicRecordNameStrategy",
                "bindingVersion": BINDING,
            }
        },
        "examples": [
            {"name": path.stem, "payload": json.loads(path.read_text("utf-8"))}
            for path in sorted(version.examples.glob("*.json"))
        ],
        "x-subject": f"{home}-{schema['namespace']}.{schema['name']}",
        "x-minors": {
            f"{minor.major}.{minor.minor}": minor.file.relative_to(catalog.ROOT.parent).as_posix() for minor in line
        },
    }


def _id(version: Version) -> str:
    return f"{version.type}.v{version.major}"
