"""AsyncAPI 3.0.0 and its Kafka bindings 0.5.0, as far as our contract goes: what each object must and may say.

Written from the specifications, not from what we generate. A property that an object does not have is refused.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

_Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$")]
_Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
_Text = Annotated[str, StringConstraints(min_length=1)]


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_extensions(cls, raw: Any) -> Any:
        """Any object may have properties of one's own, if they begin with x-."""
        return (
            {name: value for name, value in raw.items() if not name.startswith("x-")}
            if isinstance(raw, dict)
            else raw
        )


class Reference(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    ref: Annotated[str, Field(alias="$ref", pattern=r"^#/")]


class Info(_Object):
    title: _Text
    version: _Version
    description: _Text


class Variable(_Object):
    default: _Text
    description: _Text


class Server(_Object):
    host: _Text
    protocol: Literal["kafka"]
    description: _Text
    variables: dict[_Id, Variable]


class TopicConfiguration(_Object):
    """Others are allowed, but ours says no others."""

    cleanup_policy: list[Literal["delete", "compact"]] = Field(alias="cleanup.policy", min_length=1)
    retention_ms: int = Field(alias="retention.ms", ge=-1)
    retention_bytes: int = Field(alias="retention.bytes", ge=-1)
    max_message_bytes: int = Field(alias="max.message.bytes", ge=0)


class KafkaChannel(_Object):
    topic: _Text
    partitions: int = Field(ge=1)
    topicConfiguration: TopicConfiguration  # noqa: N815
    bindingVersion: Literal["0.5.0"]  # noqa: N815


class KafkaOperation(_Object):
    groupId: dict[str, Any]  # noqa: N815
    bindingVersion: Literal["0.5.0"]  # noqa: N815


class KafkaMessage(_Object):
    key: dict[str, Any]
    schemaIdLocation: Literal["header", "payload"]  # noqa: N815
    schemaIdPayloadEncoding: _Text  # noqa: N815
    schemaLookupStrategy: _Text  # noqa: N815
    bindingVersion: Literal["0.5.0"]  # noqa: N815


class ChannelBindings(_Object):
    kafka: KafkaChannel


class OperationBindings(_Object):
    kafka: KafkaOperation


class MessageBindings(_Object):
    kafka: KafkaMessage


class Channel(_Object):
    address: _Text
    description: _Text
    servers: list[Reference]
    messages: dict[_Id, Reference] = Field(min_length=1)
    bindings: ChannelBindings


class Tag(_Object):
    name: _Text


class Operation(_Object):
    action: Literal["send", "receive"]
    channel: Reference
    description: _Text
    tags: list[Tag]
    messages: list[Reference] = Field(min_length=1)
    bindings: OperationBindings | None = None


class MultiFormatSchema(_Object):
    schemaFormat: _Text  # noqa: N815
    content: dict[str, Any] = Field(alias="schema")


class Example(_Object):
    name: _Id
    payload: dict[str, Any]


class Message(_Object):
    name: _Text
    title: _Text
    summary: _Text
    headers: dict[str, Any]
    payload: MultiFormatSchema
    bindings: MessageBindings
    examples: list[Example] = Field(min_length=1)


class Components(_Object):
    messages: dict[_Id, Message]
    schemas: dict[_Id, dict[str, Any]]


class Document(_Object):
    asyncapi: Literal["3.0.0"]
    info: Info
    defaultContentType: Annotated[str, StringConstraints(pattern=r"^[a-z]+/[a-z0-9.+-]+$")]  # noqa: N815
    servers: dict[_Id, Server]
    channels: dict[_Id, Channel]
    operations: dict[_Id, Operation]
    components: Components


def faults(raw: dict[str, Any]) -> list[str]:
    """What no single object shows: references to nothing, operations on messages that their channel does not have.

    Raises ValidationError for an object that is not as the specification has it.
    """
    return list(_faults(raw, Document.model_validate(raw)))


def resolve(raw: Any, ref: str) -> Any:
    """What a reference within the document points at. Raises KeyError when there is nothing."""
    for part in ref.removeprefix("#/").split("/"):
        raw = raw[part.replace("~1", "/").replace("~0", "~")]
    return raw


def _faults(raw: dict[str, Any], document: Document) -> Iterator[str]:
    for ref in references(raw):
        try:
            resolve(raw, ref)
        except KeyError:
            yield f"{ref} points at nothing"
    for name, channel in document.channels.items():
        yield from (
            f"{name}: {one.ref} is no server" for one in channel.servers if not one.ref.startswith("#/servers/")
        )
        for message in channel.messages.values():
            if not message.ref.startswith("#/components/messages/"):
                yield f"{name}: {message.ref} is no message"
    addresses = [channel.address for channel in document.channels.values()]
    yield from (
        f"{address} is the address of two channels" for address in {a for a in addresses if addresses.count(a) > 1}
    )
    for name, operation in document.operations.items():
        if not operation.channel.ref.startswith("#/channels/"):
            yield f"{name}: {operation.channel.ref} is no channel"
        for message in operation.messages:
            if not message.ref.startswith(f"{operation.channel.ref}/messages/"):
                yield f"{name}: {message.ref} is no message of its channel"
    for server in document.servers.values():
        for variable in server.variables:
            if f"{{{variable}}}" not in server.host:
                yield f"the host does not use the variable {variable}"


def references(raw: Any) -> Iterator[str]:
    """Every reference in the document."""
    if isinstance(raw, dict):
        if isinstance(raw.get("$ref"), str):
            yield raw["$ref"]
        for inner in raw.values():
            yield from references(inner)
    elif isinstance(raw, list):
        for inner in raw:
            yield from references(inner)
