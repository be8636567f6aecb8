"""An HTTP face: every failure is a problem, the probes tell the truth, the metrics stay few."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Literal
from uuid import UUID

import httpx
import psycopg
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from messaging import telemetry
from messaging.errors import Outage, OutboxFull
from web import probes, tokens
from web.faces import make_face
from web.problems import MEDIA_TYPE, bad_input
from web.tokens import Bearer, Identity, require

SECRET = "a secret of at least thirty-two bytes"


class Sent(BaseModel):
    """What POST /number takes."""

    model_config = ConfigDict(extra="forbid")

    size: int = Field(ge=1)
    name: str = Field("", max_length=3)
    at: AwareDatetime | None = None
    colour: Literal["red", "green"] = "red"
    parts: list[UUID] = []
    bright: bool = False


def face(live: Mapping[str, probes.Check] | None = None, ready: Mapping[str, probes.Check] | None = None) -> FastAPI:
    app = make_face("Test", live=live or {}, ready=ready or {})
    bearer = Bearer(SECRET)
    failures: dict[str, Exception] = {
        "half": bad_input("a\ud800", "bad-name", "There is no \udfff."),
        "input": bad_input("colour", "bad-colour", "Send a colour."),
        "http": HTTPException(418, "I am a teapot."),
        "full": OutboxFull("too many rows in outbox_20261129"),
        "outage": Outage("disk /secret/path is gone", "storage"),
        "database": psycopg.OperationalError("connection to 10.0.0.7 failed"),
        "statement": psycopg.errors.UndefinedTable("relation secret_table does not exist"),
        "bug": KeyError("secret_variable"),
    }

    @app.get("/fail/{kind}")
    async def fail(kind: str) -> None:
        raise failures[kind]

    @app.get("/number")
    async def number(size: Annotated[int, Query(ge=1)], name: str = "") -> int:
        return size

    routes = APIRouter()

    @routes.post("/number")
    async def send(sent: Sent) -> int:
        return sent.size

    app.include_router(routes)

    @app.get("/admin")
    async def admin(who: Annotated[Identity, Depends(bearer)]) -> str:
        require(who, {"admin"})
        return who.sub

    @app.get("/trace")
    async def trace() -> str | None:
        return telemetry.current_traceparent()

    return app


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(face(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://face") as client:
        yield client


def assert_problem(answer: httpx.Response, status: int, field: str | None = None) -> None:
    body = answer.json()
    assert answer.status_code == body["status"] == status
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert body["type"].startswith("urn:workbot:problem:")
    assert body["title"]
    assert body["detail"]
    assert [error["field"] for error in body.get("errors", [])] == ([] if field is None else [field])


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/fail/input", 422, "colour"),
        ("/fail/half", 422, "a?"),
        ("/fail/http", 418, None),
        ("/fail/full", 503, None),
        ("/fail/outage", 503, None),
        ("/fail/database", 503, None),
        ("/fail/statement", 500, None),
        ("/fail/bug", 500, None),
        ("/nowhere", 404, None),
        ("/number?size=0", 422, "size"),
        ("/number", 422, "size"),
        ("/number?size=1&name=a%00", 422, "name"),
        ("/number?size=1&name=%1b", 422, "name"),
        ("/number?size=1&other=%C2%85", 422, "other"),
        ("/number?size=%00", 422, "size"),
        ("/fail/a%00", 422, "kind"),
    ],
)
async def test_every_failure_is_a_problem_and_tells_no_secret(
    client: httpx.AsyncClient, path: str, status: int, field: str | None
) -> None:
    answer = await client.get(path)
    assert_problem(answer, status, field)
    assert "secret" not in answer.text
    assert "10.0.0.7" not in answer.text


async def test_refused_work_says_when_to_come_back(client: httpx.AsyncClient) -> None:
    assert int((await client.get("/fail/full")).headers["retry-after"]) > 0


async def test_a_wrong_method_is_a_problem_that_names_the_right_one(client: httpx.AsyncClient) -> None:
    answer = await client.post("/trace")
    assert_problem(answer, 405)
    assert answer.headers["allow"] == "GET"


async def test_a_wrong_method_is_told_of_every_right_one(client: httpx.AsyncClient) -> None:
    answer = await client.delete("/number")
    assert_problem(answer, 405)
    assert answer.headers["allow"] == "GET, POST"
    assert "GET, POST" in answer.json()["detail"]


async def test_an_unknown_path_leads_to_the_docs(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nowhere")
    assert_problem(answer, 404)
    assert "/docs" in answer.json()["detail"]


REMEDIES = {
    "a form": ("{}", "application/x-www-form-urlencoded", "body", "Content-Type: application/json"),
    "no type": ("{}", None, "body", "Content-Type: application/json"),
    "nothing": ("", "application/json", "body", "The body is missing"),
    "no JSON": ('{"size": 1', "application/json", "body", "at character 10"),
    "a list": ("[1]", "application/json", "body", "JSON object"),
    "without what it needs": ("{}", "application/json", "size", "required"),
    "another field": ('{"size": 1, "zise": 2}', "application/json", "zise", "at, bright, colour, name, parts, size"),
    "a time of no zone": ('{"size": 1, "at": "2026-05-04T12:00:00"}', "application/json", "at", "04T12:30:00Z"),
    "no time": ('{"size": 1, "at": "noon"}', "application/json", "at", "04T12:30:00Z"),
    "a size of none": ('{"size": 0}', "application/json", "size", "Send 1 or more."),
    "a word as a size": ('{"size": "big"}', "application/json", "size", "whole number"),
    "half a size": ('{"size": 1.5}', "application/json", "size", "whole number"),
    "a long name": ('{"size": 1, "name": "abcd"}', "application/json", "name", "at most 3"),
    "a number as a name": ('{"size": 1, "name": 4}', "application/json", "name", "Send a string."),
    "no such colour": ('{"size": 1, "colour": "blue"}', "application/json", "colour", "Send 'red' or 'green'."),
    "a wrong id": ('{"size": 1, "parts": ["x"]}', "application/json", "parts.0", "Send an id"),
    "perhaps": ('{"size": 1, "bright": "perhaps"}', "application/json", "bright", "true or false"),
}


@pytest.mark.parametrize("case", REMEDIES)
async def test_what_is_wrong_with_a_body_comes_with_its_remedy(client: httpx.AsyncClient, case: str) -> None:
    content, kind, field, remedy = REMEDIES[case]
    headers = {} if kind is None else {"Content-Type": kind}
    answer = await client.post("/number", content=content.encode(), headers=headers)
    assert_problem(answer, 422, field)
    assert remedy in answer.json()["errors"][0]["detail"]
    assert answer.json()["detail"].startswith(f"{field}: ")
    assert "Input should" not in answer.text


async def test_what_is_wrong_with_a_query_comes_with_its_remedy(client: httpx.AsyncClient) -> None:
    answer = await client.get("/number?size=0")
    assert answer.json()["detail"] == "size: Send 1 or more."


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic YTpi", "Bearer x.y.z"])
async def test_without_a_valid_token_the_answer_is_401(client: httpx.AsyncClient, header: str | None) -> None:
    answer = await client.get("/admin", headers={} if header is None else {"Authorization": header})
    assert_problem(answer, 401, "Authorization")
    assert "workbot token" in answer.json()["detail"]
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_role_opens_the_door_and_another_does_not(client: httpx.AsyncClient) -> None:
    def bearer(*roles: str) -> dict[str, str]:
        return {"Authorization": f"bearer {tokens.issue(SECRET, 'ann', 'acme', roles, 60)}"}

    assert (await client.get("/admin", headers=bearer("admin", "sender"))).json() == "ann"
    assert_problem(await client.get("/admin", headers=bearer("reviewer")), 403, "Authorization")


async def test_a_request_joins_the_callers_trace(client: httpx.AsyncClient) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    joined = (await client.get("/trace", headers={"traceparent": parent})).json()
    assert joined.split("-")[1] == parent.split("-")[1]
    assert joined.split("-")[2] != parent.split("-")[2]
    assert (await client.get("/trace", headers={"traceparent": "zz-junk"})).json().split("-")[1] not in ("junk", "")


async def test_readiness_is_the_sum_of_the_checks() -> None:
    well = {"loop": lambda: True}
    broken: dict[str, probes.Check] = {
        "no": lambda: False,
        "raises": _raises,
        "hangs": lambda: asyncio.sleep(60, True),
    }
    transport = httpx.ASGITransport(face(live=well, ready=broken))
    async with httpx.AsyncClient(transport=transport, base_url="http://face") as client:
        alive = await client.get("/healthz")
        ready = await client.get("/readyz")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok", "parts": {"loop": "ok"}})
    assert_problem(ready, 503)
    assert "Not well: no, raises, hangs" in ready.json()["detail"]
    assert ready.json()["parts"] == {"loop": "ok", "no": "failing", "raises": "failing", "hangs": "failing"}


async def _raises() -> bool:
    raise OSError("away")


async def test_requests_are_counted_by_route_and_not_by_address(client: httpx.AsyncClient) -> None:
    for path in ("/fail/http", "/fail/input", "/made/up", "/another/one"):
        await client.get(path)
    await client.request("BREW", "/number")
    text = (await client.get("/metrics")).text
    assert 'route="/fail/{kind}",status="418"' in text
    assert 'route="unmatched",status="404"' in text
    assert 'method="other"' in text
    assert "/made/up" not in text
    assert "BREW" not in text


async def test_the_docs_are_served(client: httpx.AsyncClient) -> None:
    assert (await client.get("/docs")).status_code == 200
    assert "/admin" in (await client.get("/openapi.json")).json()["paths"]
