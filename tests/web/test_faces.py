"""An HTTP face: every failure is a problem, the probes tell the truth, the metrics stay few."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Literal
from uuid import UUID

import httpx
import psycopg
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from psycopg_pool import PoolTimeout
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from messaging import telemetry
from messaging.errors import Outage, OutboxFull
from web import probes, tokens
from web.faces import make_face
from web.problems import MEDIA_TYPE, BadInput, Problem, bad_input, not_found
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
        "pool": PoolTimeout("couldn't get a connection after 10.00 sec"),
        "database": psycopg.OperationalError("connection to 10.0.0.7 failed"),
        "statement": psycopg.errors.UndefinedTable("relation secret_table does not exist"),
        "bug": KeyError("secret_variable"),
    }

    @app.get("/fail/{kind}")
    async def fail(kind: str) -> None:
        raise failures[kind]

    @app.post("/fail/{kind}")
    async def fail_to_take(kind: str) -> None:
        raise failures[kind]

    @app.get("/number")
    async def number(size: Annotated[int, Query(ge=1)], name: str = "", at: AwareDatetime | None = None) -> int:
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
    "nothing": ("", "body", "The body is missing"),
    "no JSON": ('{"size": 1', "body", "at character 10"),
    "a list": ("[1]", "body", "JSON object"),
    "without what it needs": ("{}", "size", "required"),
    "another field": ('{"size": 1, "zise": 2}', "zise", "at, bright, colour, name, parts, size"),
    "a time of no zone": ('{"size": 1, "at": "2026-05-04T12:00:00"}', "at", "04T12:30:00Z"),
    "no time": ('{"size": 1, "at": "noon"}', "at", "04T12:30:00Z"),
    "a size of none": ('{"size": 0}', "size", "Send 1 or more."),
    "a word as a size": ('{"size": "big"}', "size", "whole number"),
    "half a size": ('{"size": 1.5}', "size", "whole number"),
    "a long name": ('{"size": 1, "name": "abcd"}', "name", "at most 3"),
    "a number as a name": ('{"size": 1, "name": 4}', "name", "Send a string."),
    "no such colour": ('{"size": 1, "colour": "blue"}', "colour", "Send 'red' or 'green'."),
    "a wrong id": ('{"size": 1, "parts": ["x"]}', "parts.0", "Send an id"),
    "perhaps": ('{"size": 1, "bright": "perhaps"}', "bright", "true or false"),
}


@pytest.mark.parametrize("case", REMEDIES)
async def test_what_is_wrong_with_a_body_comes_with_its_remedy(client: httpx.AsyncClient, case: str) -> None:
    content, field, remedy = REMEDIES[case]
    answer = await client.post("/number", content=content.encode(), headers={"Content-Type": "application/json"})
    assert_problem(answer, 422, field)
    assert remedy in answer.json()["errors"][0]["detail"]
    assert answer.json()["detail"].startswith(f"{field}: ")
    assert "Input should" not in answer.text


async def test_what_is_wrong_with_a_query_comes_with_its_remedy(client: httpx.AsyncClient) -> None:
    answer = await client.get("/number?size=0")
    assert answer.json()["detail"] == "size: Send 1 or more."


async def test_a_time_in_an_address_is_told_of_with_its_plus(client: httpx.AsyncClient) -> None:
    """In an address it means a blank; in JSON it means itself."""
    assert "%2B" in (await client.get("/number?size=1&at=noon")).json()["detail"]
    assert "%2B" not in (await client.post("/number", json={"size": 1, "at": "noon"})).json()["detail"]


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


@pytest.mark.parametrize("kind", ["full", "outage", "pool", "database"])
async def test_who_only_asks_is_not_told_that_nothing_was_kept(client: httpx.AsyncClient, kind: str) -> None:
    asked, sent = await client.get(f"/fail/{kind}"), await client.post(f"/fail/{kind}")
    for answer in (asked, sent):
        assert_problem(answer, 503)
        assert answer.headers["retry-after"] == "5"
    assert "Ask again" in asked.json()["detail"]
    assert "kept" not in asked.json()["detail"]
    told = "cannot tell whether it was kept" if kind == "database" else "nothing was kept"
    assert told in sent.json()["detail"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/xml", ""])
async def test_a_body_that_is_not_said_to_be_json(client: httpx.AsyncClient, kind: str) -> None:
    answer = await client.post("/number", content=b'{"size": 1}', headers={"Content-Type": kind})
    assert_problem(answer, 415, "Content-Type")
    answer = await client.post("/number", content=b"[1]", headers={"Content-Type": "application/json; charset=utf-8"})
    assert_problem(answer, 422, "body")


def test_bad_input_is_gathered_and_other_failures_go_on() -> None:
    bad = BadInput()
    bad.tell()
    with bad:
        raise bad_input("size", "too-long", "Send less.")
    with pytest.raises(Problem) as one:
        bad.tell()
    assert (one.value.kind, one.value.detail, one.value.faults) == (
        "too-long",
        "Send less.",
        [("size", "Send less.")],
    )
    with bad:
        raise bad_input("name", "empty", "Send one.")
    with pytest.raises(Problem) as both:
        bad.tell()
    assert (both.value.kind, both.value.detail) == ("bad-input", "size: Send less. name: Send one.")
    assert both.value.faults == [("size", "Send less."), ("name", "Send one.")]
    for other in (not_found("thing"), KeyError("x")):
        with pytest.raises(type(other)), bad:
            raise other


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
