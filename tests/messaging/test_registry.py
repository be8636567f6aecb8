import asyncio
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from messaging.errors import Misconfigured, Outage, UnknownEvent
from messaging.registry import COMPATIBILITY, UNKNOWN_SECONDS, Registry, Schema
from tests.fixtures.listening import listening
from tests.fixtures.stack import Infra

FIRST: Schema = {
    "type": "record",
    "name": "Thing",
    "namespace": "test.v1",
    "doc": "something that is kept, für immer",
    "fields": [{"name": "id", "type": "string"}],
}
SECOND: Schema = {**FIRST, "fields": [*FIRST["fields"], {"name": "size", "type": "int", "default": 0}]}
BREAKING: Schema = {**FIRST, "fields": [*FIRST["fields"], {"name": "owner", "type": "string"}]}


@pytest.fixture
def subject() -> str:
    return f"t{uuid.uuid4().hex}-test.v1.Thing"


@pytest.fixture
async def registry(infra: Infra) -> AsyncIterator[Registry]:
    opened = Registry(infra.registry_url)
    yield opened
    await opened.close()


async def test_a_registered_schema_is_found_by_what_it_says_and_by_its_id(registry: Registry, subject: str) -> None:
    schema_id = await registry.register(subject, FIRST)
    assert await registry.lookup(subject, FIRST) == schema_id
    assert await registry.schema_by_id(schema_id) == FIRST


async def test_registering_again_changes_nothing(registry: Registry, subject: str) -> None:
    ids = [await registry.register(subject, schema) for schema in (FIRST, SECOND)]
    assert [await registry.register(subject, schema) for schema in (FIRST, SECOND, FIRST)] == [*ids, ids[0]]


async def test_a_compatible_minor_is_taken_and_a_breaking_schema_refused(registry: Registry, subject: str) -> None:
    first = await registry.register(subject, FIRST)
    assert await registry.register(subject, SECOND) != first
    with pytest.raises(Misconfigured, match=rf"refuses a version of {subject} \(409\)"):
        await registry.register(subject, BREAKING)
    with pytest.raises(Misconfigured, match="does not have this version"):
        await registry.lookup(subject, BREAKING)


async def test_the_level_holds_before_the_second_version_whoever_brings_it(
    registry: Registry, subject: str, infra: Infra
) -> None:
    """A tool that knows nothing of levels is refused right after the first version landed."""
    await registry.register(subject, FIRST)
    assert await registry.compatibility(subject) == COMPATIBILITY == "FULL_TRANSITIVE"
    async with httpx.AsyncClient(trust_env=False) as stranger:
        url = f"{infra.registry_url}/subjects/{subject}/versions"
        answer = await stranger.post(url, json={"schema": json.dumps(BREAKING)})
    assert answer.status_code == 409


async def test_all_earlier_versions_count_not_only_the_last(registry: Registry, subject: str) -> None:
    """A field with a default may go and may come, but not come back as something else."""
    await registry.register(subject, SECOND)
    await registry.register(subject, FIRST)
    again = {**FIRST, "fields": [*FIRST["fields"], {"name": "size", "type": "string", "default": ""}]}
    with pytest.raises(Misconfigured, match="refuses"):
        await registry.register(subject, again)


async def test_three_deploy_steps_at_once_agree(infra: Infra) -> None:
    registries = [Registry(infra.registry_url) for _ in range(3)]

    async def deploy(registry: Registry, subject: str) -> list[int]:
        return [await registry.register(subject, schema) for schema in (FIRST, SECOND)]

    for _ in range(8):
        subject = f"t{uuid.uuid4().hex}-test.v1.Thing"
        answers = await asyncio.gather(*(deploy(registry, subject) for registry in registries))
        assert answers[0] == answers[1] == answers[2]
        assert await registries[0].compatibility(subject) == COMPATIBILITY
    for registry in registries:
        await registry.close()


async def test_what_was_never_registered_is_named(registry: Registry, subject: str) -> None:
    with pytest.raises(Misconfigured, match=f"does not have this version of {subject}. Run the deploy step"):
        await registry.lookup(subject, FIRST)
    with pytest.raises(UnknownEvent, match="no schema with id 2147483647"):
        await registry.schema_by_id(2147483647)


async def test_a_wrong_address_is_not_taken_for_an_unknown_schema(infra: Infra) -> None:
    """Every record would become a dead letter if it were, and as well if it used up their attempts."""
    registry = Registry(infra.registry_url.replace("ccompat", "elsewhere"))
    with pytest.raises(Outage, match="404"):
        await registry.schema_by_id(1)
    with pytest.raises(Misconfigured, match="404"):
        await registry.lookup("s", FIRST)
    await registry.close()


async def test_what_is_not_a_schema_is_refused(registry: Registry, subject: str) -> None:
    with pytest.raises(Misconfigured, match=r"\(422\)"):
        await registry.register(subject, {"type": "record"})


async def test_a_subject_cannot_climb_out_of_its_place(registry: Registry) -> None:
    with pytest.raises(Misconfigured):
        await registry.lookup("../config", FIRST)


async def test_a_closed_port_is_an_outage() -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
    registry = Registry(url)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: registry.schema_by_id(1),
        lambda: registry.lookup("s", FIRST),
        lambda: registry.register("s", FIRST),
    ]
    for call in calls:
        with pytest.raises(Outage) as outage:
            await call()
        assert outage.value.resource == "registry"
    await registry.close()


@asynccontextmanager
async def answering(status: str, body: bytes, *, after: float = 0.0) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers every request alike, once `after` seconds passed; yields its address and what it got."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            requests.append(line)
            length = 0
            while (header := await reader.readline()) not in (b"\r\n", b""):
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            await reader.readexactly(length)
            await asyncio.sleep(after)
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}", requests


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("500 Internal Server Error", b'{"error_code": 50001, "message": "store"}'),
        ("503 Service Unavailable", b"<html>starting</html>"),
        ("429 Too Many Requests", b"{}"),
        ("404 Not Found", b"<html>a gateway's page</html>"),
        ("200 OK", b"<html>another service's page</html>"),
        ("200 OK", b"[]"),
        ("200 OK", b'{"schema": "not json"}'),
        ("200 OK", b"{}"),
    ],
)
async def test_a_failing_or_foreign_server_is_an_outage(status: str, body: bytes) -> None:
    """None of these says anything about the record that was read: nothing may be set aside for it."""
    async with answering(status, body) as (url, _):
        registry = Registry(url)
        with pytest.raises(Outage):
            await registry.schema_by_id(1)
        with pytest.raises(Outage):
            await registry.lookup("s", FIRST)
        await registry.close()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ({"schemaType": "PROTOBUF", "schema": "message A {}"}, "not Avro"),
        ({"schema": '"string"'}, "not a record"),
    ],
)
async def test_a_schema_we_cannot_use_is_an_unknown_event(answer: dict[str, str], complaint: str) -> None:
    async with answering("200 OK", json.dumps(answer).encode()) as (url, _):
        registry = Registry(url)
        with pytest.raises(UnknownEvent, match=complaint):
            await registry.schema_by_id(1)
        await registry.close()


async def test_a_slow_registry_is_an_outage_when_the_time_is_up() -> None:
    async with answering("200 OK", b"{}", after=30.0) as (url, _):
        registry = Registry(url, timeout=0.2)
        start = time.monotonic()
        with pytest.raises(Outage, match="ReadTimeout"):
            await registry.schema_by_id(1)
        assert time.monotonic() - start < 5
        await registry.close()


async def test_many_who_miss_one_id_ask_once_and_it_is_remembered() -> None:
    body = json.dumps({"schema": json.dumps(FIRST)}).encode()
    async with answering("200 OK", body, after=0.1) as (url, requests):
        registry = Registry(url)
        assert await asyncio.gather(*(registry.schema_by_id(7) for _ in range(20))) == [FIRST] * 20
        assert len(requests) == 1
    assert await registry.schema_by_id(7) == FIRST
    await registry.close()


async def test_one_who_gives_up_does_not_take_the_answer_from_the_others() -> None:
    body = json.dumps({"schema": json.dumps(FIRST)}).encode()
    async with answering("200 OK", body, after=0.1) as (url, requests):
        registry = Registry(url)
        first, second = (asyncio.create_task(registry.schema_by_id(7)) for _ in range(2))
        await asyncio.sleep(0.02)
        first.cancel()
        assert await second == FIRST
        assert first.cancelled()
        assert len(requests) == 1
        await registry.close()


NOT_FOUND = json.dumps({"error_code": 40403, "message": "not found"}).encode()


async def test_an_id_that_does_not_exist_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messaging.registry.UNKNOWN_SECONDS", 0.5)
    async with answering("404 Not Found", NOT_FOUND) as (url, requests):
        registry = Registry(url)
        began = time.monotonic()
        for _ in range(200):
            with pytest.raises(UnknownEvent, match="no schema with id 7"):
                await registry.schema_by_id(7)
        assert len(requests) <= 1 + (time.monotonic() - began) / 0.5
        asked = len(requests)
        await asyncio.sleep(0.55)
        with pytest.raises(UnknownEvent):
            await registry.schema_by_id(7)
        assert len(requests) == asked + 1, "it may have been registered meanwhile"
        await registry.close()


async def test_an_id_that_was_registered_since_is_found() -> None:
    answers = [("404 Not Found", NOT_FOUND), ("200 OK", json.dumps({"schema": json.dumps(FIRST)}).encode())]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, body = answers.pop(0)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    async with listening(serve) as port:
        registry = Registry(f"http://127.0.0.1:{port}")
        with pytest.raises(UnknownEvent):
            await registry.schema_by_id(7)
        await asyncio.sleep(UNKNOWN_SECONDS)
        assert await registry.schema_by_id(7) == FIRST
        await registry.close()


async def test_what_is_remembered_of_unknown_ids_is_bounded_and_the_oldest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.registry.UNKNOWN_SECONDS", 3600.0)
    monkeypatch.setattr("messaging.registry.UNKNOWN_KEPT", 5)
    async with answering("404 Not Found", NOT_FOUND) as (url, requests):
        registry = Registry(url)
        asked = []
        for schema_id in (*range(8), 7, 6, 5, 4, 3, 2, 2, 7):
            before = len(requests)
            with pytest.raises(UnknownEvent):
                await registry.schema_by_id(schema_id)
            if len(requests) > before:
                asked.append(schema_id)
            assert len(registry._unknown) <= 5
        await registry.close()
    assert asked == [*range(8), 2], "3 to 7 are remembered, then 4 to 7 and 2"


async def test_an_id_that_no_registry_can_give_out_is_not_asked_for() -> None:
    async with answering("500 Internal Server Error", b"{}") as (url, requests):
        registry = Registry(url)
        for schema_id in (2**31, 2**32 - 1):
            with pytest.raises(UnknownEvent, match=str(schema_id)):
                await registry.schema_by_id(schema_id)
        assert not requests
        await registry.close()


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "404 Not Found", "422 Unprocessable Entity"])
async def test_a_registry_that_refuses_us_says_nothing_about_the_record(status: str) -> None:
    async with answering(status, b'{"message": "no"}') as (url, _):
        registry = Registry(url)
        with pytest.raises(Outage, match=status[:3]):
            await registry.schema_by_id(1)
        await registry.close()


async def test_a_failed_answer_is_not_remembered() -> None:
    async with answering("503 Service Unavailable", b"{}") as (url, requests):
        registry = Registry(url)
        for _ in range(2):
            with pytest.raises(Outage):
                await registry.schema_by_id(7)
        assert len(requests) == 2
        await registry.close()


async def test_a_proxy_for_the_internet_does_not_catch_calls_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with answering("200 OK", json.dumps({"schema": json.dumps(FIRST)}).encode()) as (url, _):
        registry = Registry(url)
        assert await registry.schema_by_id(1) == FIRST
        await registry.close()
