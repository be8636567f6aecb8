import asyncio
import json
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, ClassVar

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from messaging.codec import Codec, Contract
from messaging.errors import Misconfigured, Outage, Undecodable, UnknownEvent
from messaging.message import Key
from messaging.registry import Registry, Schema
from messaging.telemetry import trace
from tests.fixtures.stack import Infra


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPlaced:
    TYPE: ClassVar[str] = "order.placed"
    MAJOR: ClassVar[int] = 1

    id: str
    size: int
    rank: int
    gift: bool
    seal: bytes
    note: str | None = None
    tags: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    first: Line | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSent:
    TYPE: ClassVar[str] = "order.sent"
    MAJOR: ClassVar[int] = 1

    id: str


LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "name", "type": "string"}, {"name": "amount", "type": "double"}],
}
PLACED: Schema = {
    "type": "record",
    "name": "OrderPlaced",
    "namespace": "test.v1",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "size", "type": "long"},
        {"name": "rank", "type": "int"},
        {"name": "gift", "type": "boolean"},
        {"name": "seal", "type": "bytes"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "lines", "type": {"type": "array", "items": LINE}, "default": []},
        {"name": "first", "type": ["null", {**LINE, "name": "FirstLine"}], "default": None},
    ],
}
SENT: Schema = {
    "type": "record",
    "name": "OrderSent",
    "namespace": "test.v1",
    "fields": [{"name": "id", "type": "string"}],
}
CONTRACTS = [Contract(OrderPlaced, "orders", PLACED), Contract(OrderSent, "orders", SENT)]
READERS = {OrderPlaced: "a handler", OrderSent: "a handler"}

ORDER = OrderPlaced(
    id="o-1",
    size=5_000_000_000,
    rank=2,
    gift=True,
    seal=b"\x00\xff",
    note="für dich",
    tags=("a", "b"),
    lines=(Line(name="tea", amount=2.5),),
    first=Line(name="tea", amount=2.5),
)
BARE = OrderPlaced(id="", size=-1, rank=0, gift=False, seal=b"")


class Shelf(Registry):
    """A registry without a server: knows what it is given, counts what it is asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.schemas: dict[int, Schema] = {}
        self.asked = 0

    def put(self, schema: Schema) -> int:
        schema_id = len(self.schemas) + 1
        self.schemas[schema_id] = schema
        return schema_id

    async def lookup(self, subject: str, schema: Schema) -> int:
        self.asked += 1
        return self.put(schema)

    async def schema_by_id(self, schema_id: int) -> Schema:
        self.asked += 1
        if schema_id not in self.schemas:
            raise UnknownEvent(f"no schema {schema_id}")
        return self.schemas[schema_id]


@pytest.fixture
def closed_url() -> str:
    """An address at which nobody listens."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{port.getsockname()[1]}"


@pytest.fixture
def topic_name() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture(scope="module")
def codec(shelf: Shelf) -> Codec:
    made = Codec(shelf, CONTRACTS)
    asyncio.run(made.prepare([OrderPlaced, OrderSent]))
    return made


def headers(type_: bytes = b"order.placed", version: bytes = b"1") -> dict[str, bytes]:
    return {"ce_type": type_, "event_version": version}


def framed(schema_id: int, schema: Schema, record: dict[str, Any]) -> bytes:
    buffer = BytesIO()
    buffer.write(b"\x00" + schema_id.to_bytes(4, "big"))
    schemaless_writer(buffer, parse_schema(schema), record)
    return buffer.getvalue()


def changed(**change: Any) -> Schema:
    return json.loads(json.dumps(PLACED)) | change


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LINES = st.builds(Line, name=TEXT, amount=st.floats(allow_nan=False))
ORDERS = st.builds(
    OrderPlaced,
    id=TEXT,
    size=st.integers(-(2**63), 2**63 - 1),
    rank=st.integers(-(2**31), 2**31 - 1),
    gift=st.booleans(),
    seal=st.binary(),
    note=st.none() | TEXT,
    tags=st.lists(TEXT).map(tuple),
    lines=st.lists(LINES).map(tuple),
    first=st.none() | LINES,
)


@given(order=ORDERS)
def test_what_is_encoded_comes_back_equal(codec: Codec, order: OrderPlaced) -> None:
    assert codec.decode_known(headers(), codec.encode(order), READERS) == order


def test_a_value_is_a_zero_byte_the_schema_id_and_avro(codec: Codec, shelf: Shelf) -> None:
    value = codec.encode(OrderSent(id="o-1"))
    schema_id = next(number for number, schema in shelf.schemas.items() if schema is SENT)
    assert value == b"\x00" + schema_id.to_bytes(4, "big") + b"\x06o-1"


@given(st.binary(max_size=80), st.integers(0, 60), st.booleans())
def test_garbage_is_undecodable_and_nothing_else(codec: Codec, garbage: bytes, cut: int, own: bool) -> None:
    """Whatever follows a known schema id either is an event or is refused as one; no other error gets out."""
    whole = codec.encode(ORDER)
    value = whole[: 5 + cut] + garbage if own else whole[:5] + garbage
    try:
        event = codec.decode_known(headers(), value, READERS)
    except Undecodable:
        return
    assert isinstance(event, OrderPlaced)


def cut_short(value: bytes) -> bytes:
    return value[:-1]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda value: None, "too short"),
        (lambda value: b"", "too short"),
        (lambda value: value[:4], "too short"),
        (lambda value: b'{"id": "o-1"}', "begins with byte 123"),
        (lambda value: b"\x01" + value[1:], "begins with byte 1"),
        (lambda value: value[:5], "is not a test.v1.OrderPlaced"),
        (cut_short, "is not a test.v1.OrderPlaced"),
        (lambda value: value + b"\x00\x00", "2 bytes follow"),
        (lambda value: value[:5] + b"\xff" * 20, "is not a test.v1.OrderPlaced"),
        (lambda value: value[:5] + b"\x02\xff" + value[9:], "is not a test.v1.OrderPlaced"),
    ],
)
async def test_a_spoiled_value_says_what_is_wrong(
    codec: Codec, spoil: Callable[[bytes], bytes | None], complaint: str
) -> None:
    value = spoil(codec.encode(ORDER))
    with pytest.raises(Undecodable, match=complaint):
        codec.decode_known(headers(), value, READERS)
    with pytest.raises(Undecodable, match=complaint):
        await codec.decode(headers(), value, READERS)


@pytest.mark.parametrize(
    "untrusted",
    [
        {},
        {"ce_type": b"order.placed"},
        {"event_version": b"1"},
        headers(b"order.lost"),
        headers(b"order.placed", b"2"),
        headers(b"order.placed", b"01"),
        headers(b"order.placed", b"1.0"),
        headers(b"order.placed", b" 1"),
        headers(b"order.placed", "１".encode()),
        headers(b"\xff\xfe\x00"),
        headers(b"order.placed", b"\xff"),
        headers(b"", b""),
        headers(b"x" * 1_000_000),
    ],
)
async def test_headers_that_name_no_reader_are_refused_before_anything_is_asked(
    codec: Codec, shelf: Shelf, untrusted: dict[str, bytes]
) -> None:
    asked = shelf.asked
    for value in (codec.encode(ORDER), b"\x00\x00\x00\xff\xff garbage"):
        with pytest.raises(UnknownEvent) as refused:
            await codec.decode(untrusted, value, READERS)
        assert len(str(refused.value)) < 300
        with pytest.raises(UnknownEvent):
            codec.decode_known(untrusted, value, READERS)
    assert shelf.asked == asked


async def test_an_event_the_consumer_does_not_read_is_unknown_to_it(codec: Codec) -> None:
    with pytest.raises(UnknownEvent, match=r"No reader for ce_type=b'order\.placed', event_version=b'1'"):
        await codec.decode(headers(), codec.encode(ORDER), {OrderSent: "a handler"})


async def test_fields_of_a_newer_minor_are_dropped_and_those_of_an_older_filled_in() -> None:
    shelf = Shelf()
    codec = Codec(shelf, CONTRACTS)
    record = {"id": "o-9", "size": 1, "rank": 1, "gift": False, "seal": b""}
    newer = changed(fields=[{"name": "weight", "type": "double", "default": 0.0}, *PLACED["fields"]])
    older = changed(fields=PLACED["fields"][:5])
    expected = OrderPlaced(id="o-9", size=1, rank=1, gift=False, seal=b"")
    rest = {"note": None, "tags": [], "lines": [], "first": None}
    value = framed(shelf.put(newer), newer, {**record, **rest, "weight": 2.0})
    assert await codec.decode(headers(), value, READERS) == expected
    assert await codec.decode(headers(), framed(shelf.put(older), older, record), READERS) == expected


async def test_after_the_first_use_of_an_id_nothing_is_asked() -> None:
    shelf = Shelf()
    codec = Codec(shelf, CONTRACTS)
    schema_id = shelf.put(PLACED)
    value = framed(
        schema_id,
        PLACED,
        {
            "id": "a",
            "size": 1,
            "rank": 1,
            "gift": True,
            "seal": b"",
            "note": None,
            "tags": [],
            "lines": [],
            "first": None,
        },
    )
    assert codec.decode_known(headers(), value, READERS) is None
    first = await codec.decode(headers(), value, READERS)
    assert shelf.asked == 1
    assert codec.decode_known(headers(), value, READERS) == first
    assert await codec.decode(headers(), value, READERS) == first
    assert shelf.asked == 1


async def test_what_the_headers_claim_must_be_what_the_schema_says() -> None:
    """A schema id may be anybody's: another event's, or the same record of another major."""
    shelf = Shelf()
    codec = Codec(shelf, CONTRACTS)
    other = framed(shelf.put(SENT), SENT, {"id": "o-1"})
    with pytest.raises(Undecodable, match=r"say order\.placed v1, the value is a test\.v1\.OrderSent"):
        await codec.decode(headers(), other, READERS)
    major = {**SENT, "namespace": "test.v2"}
    with pytest.raises(Undecodable, match=r"say order\.sent v1, the value is a test\.v2\.OrderSent"):
        await codec.decode(headers(b"order.sent"), framed(shelf.put(major), major, {"id": "o-1"}), READERS)


@pytest.mark.parametrize(
    "broken",
    [{}, {"type": "record"}, {**SENT, "fields": [{"name": "id", "type": "Nowhere"}]}, {**SENT, "fields": 5}],
    ids=str,
)
async def test_a_schema_that_is_not_avro_makes_its_values_undecodable(broken: Schema) -> None:
    shelf = Shelf()
    value = b"\x00" + shelf.put(broken).to_bytes(4, "big") + b"\x06o-1"
    with pytest.raises(Undecodable, match="not a usable Avro schema"):
        await Codec(shelf, CONTRACTS).decode(headers(b"order.sent"), value, READERS)


async def test_a_version_that_broke_the_rules_is_undecodable() -> None:
    shelf = Shelf()
    codec = Codec(shelf, CONTRACTS)
    breaking = {**SENT, "fields": [{"name": "number", "type": "long"}]}
    with pytest.raises(Undecodable, match="No default value for field id"):
        await codec.decode(headers(b"order.sent"), framed(shelf.put(breaking), breaking, {"number": 1}), READERS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rank": 2**31},
        {"rank": 1.5},
        {"rank": True},
        {"size": None},
        {"size": 2**63},
        {"id": b"bytes"},
        {"id": "\ud800"},
        {"note": 5},
        {"gift": "yes"},
        {"tags": (1,)},
        {"lines": ("tea",)},
        {"lines": (Line(name="tea", amount="much"),)},  # type: ignore[arg-type]
        {"first": "tea"},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_never_written(codec: Codec, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="OrderPlaced does not fit its schema"):
        codec.encode(replace(ORDER, **wrong))


def test_a_dataclass_that_is_not_its_schema_is_refused_at_start() -> None:
    with pytest.raises(Misconfigured, match="OrderSent and its newest Avro schema differ"):
        Codec(Shelf(), [Contract(OrderSent, "orders", {**SENT, "fields": [{"name": "number", "type": "string"}]})])


def test_a_type_without_a_counterpart_is_refused_at_start() -> None:
    @dataclass(frozen=True)
    class Odd:
        TYPE: ClassVar[str] = "odd"
        MAJOR: ClassVar[int] = 1
        id: dict[str, str]

    with pytest.raises(Misconfigured, match="There is no Avro counterpart"):
        Codec(Shelf(), [Contract(Odd, "orders", SENT)])


def test_encoding_needs_a_prepared_codec_and_a_known_event() -> None:
    codec = Codec(Shelf(), CONTRACTS)
    with pytest.raises(Misconfigured, match="not prepared to write OrderSent"):
        codec.encode(OrderSent(id="o-1"))
    with pytest.raises(Misconfigured, match="Line is not among"):
        codec.encode(ORDER.first)


async def test_an_envelope_carries_all_that_travels(codec: Codec) -> None:
    with trace(None) as traceparent:
        envelope = codec.envelope(ORDER, source="shop", subject="o-1", key=Key("acme", "nadia"))
    assert (envelope.topic, envelope.key, envelope.type, envelope.version) == (
        "orders",
        "acme:nadia",
        "order.placed",
        1,
    )
    assert (envelope.source, envelope.subject, envelope.traceparent) == ("shop", "o-1", traceparent)
    assert envelope.payload == codec.encode(ORDER)
    assert codec.envelope(ORDER, source="shop", subject="o-1", key="acme:omar").traceparent is None


async def test_an_absent_registry_is_an_outage_only_for_what_must_be_asked(codec: Codec, closed_url: str) -> None:
    registry = Registry(closed_url)
    lonely = Codec(registry, CONTRACTS)
    value = codec.encode(ORDER)
    with pytest.raises(Outage) as outage:
        await lonely.decode(headers(), value, READERS)
    assert outage.value.resource == "registry"
    with pytest.raises(UnknownEvent):
        await lonely.decode(headers(b"order.placed", b"2"), value, READERS)
    with pytest.raises(Undecodable):
        await lonely.decode(headers(), b"\x07garbage", READERS)
    with pytest.raises(Outage):
        await lonely.prepare([OrderPlaced])
    await registry.close()


async def test_against_the_live_registry(infra: Infra, topic_name: str) -> None:
    """Two processes: one writes an older minor, one reads with a newer; neither shares anything but the registry."""
    older = {**SENT, "fields": SENT["fields"]}
    newer = {**SENT, "fields": [*SENT["fields"], {"name": "carrier", "type": ["null", "string"], "default": None}]}

    @dataclass(frozen=True, kw_only=True)
    class Newer:
        TYPE: ClassVar[str] = "order.sent"
        MAJOR: ClassVar[int] = 1
        id: str
        carrier: str | None = None

    first, second = Registry(infra.registry_url), Registry(infra.registry_url)
    writes = Codec(first, [Contract(OrderSent, topic_name, older)])
    reads = Codec(second, [Contract(Newer, topic_name, newer)])
    with pytest.raises(Misconfigured, match="does not have this version"):
        await writes.prepare([OrderSent])
    subject = f"{topic_name}-test.v1.OrderSent"
    await first.register(subject, older)
    await first.register(subject, newer)
    await writes.prepare([OrderSent])
    await reads.prepare([Newer])

    sent = headers(b"order.sent")
    assert await reads.decode(sent, writes.encode(OrderSent(id="o-1")), {Newer}) == Newer(id="o-1")
    assert await writes.decode(sent, reads.encode(Newer(id="o-2", carrier="van")), {OrderSent}) == OrderSent(id="o-2")
    with pytest.raises(UnknownEvent, match="no schema with id 2147483647"):
        await reads.decode(sent, b"\x00\x7f\xff\xff\xff\x06o-1", {Newer})
    await first.close()
    await second.close()


def test_the_codec_adds_little_to_the_library(codec: Codec) -> None:
    """Compared within one run: parsing a schema or asking anything per record would show as a hundredfold."""
    value = codec.encode(ORDER)
    parsed = parse_schema(PLACED)

    def fastest(call: Callable[[], object]) -> float:
        laps = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(300):
                call()
            laps.append(time.perf_counter() - start)
        return min(laps)

    plain = fastest(lambda: schemaless_reader(BytesIO(value[5:]), parsed, None))
    assert fastest(lambda: codec.decode_known(headers(), value, READERS)) < 8 * plain
    assert fastest(lambda: codec.encode(ORDER)) < 20 * plain
