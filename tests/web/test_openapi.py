"""What a face says of itself: every answer it can give, problems included, on a page that needs no other server."""

import re
from typing import Annotated, Any, cast
from unittest.mock import MagicMock

import httpx
import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel

from services.documents import parts as documents
from services.gateway import parts as gateway
from web import openapi
from web.faces import make_face
from web.problems import MEDIA_TYPE
from web.tokens import Bearer, Identity


class Body(BaseModel):
    text: str


def small() -> FastAPI:
    face = make_face("Small <&>", live={}, ready={})
    caller = Annotated[Identity, Depends(Bearer("k" * 32))]

    @face.get("/open")
    async def open_() -> str:
        return ""

    @face.post("/things/{thing_id}", responses=openapi.answers(409), summary="Put <b>one</b> there")
    async def put(thing_id: str, body: Body, who: caller, size: int = 0) -> str:
        return ""

    return face


def real() -> dict[str, FastAPI]:
    nothing, bearer = cast(Any, MagicMock()), Bearer("k" * 32)
    return {
        "documents api": documents.make_api_face(nothing, nothing, bearer),
        "documents worker": documents.make_worker_face(nothing, nothing, nothing, nothing, bearer),
        "gateway api": gateway.make_api_face(nothing, nothing, bearer, nothing, nothing, nothing, nothing),
        "gateway worker": gateway.make_worker_face(nothing, nothing, nothing, nothing, nothing),
    }


FACES = {"small": small(), **real()}


def statuses(face: FastAPI, method: str, path: str) -> set[int]:
    return {int(status) for status in face.openapi()["paths"][path][method]["responses"]}


def test_each_operation_lists_the_problems_it_can_answer() -> None:
    assert statuses(small(), "get", "/open") == {200}
    assert statuses(small(), "post", "/things/{thing_id}") == {200, 401, 404, 408, 409, 413, 415, 422, 500, 503}


def test_those_of_the_real_routes() -> None:
    faces = real()
    always = {401, 500, 503}
    api, front = faces["documents api"], faces["gateway api"]
    assert statuses(api, "post", "/api/documents") == always | {202, 403, 408, 413, 415, 422, 429}
    assert statuses(api, "get", "/api/documents") == always | {200, 403, 422}
    assert statuses(api, "get", "/api/documents/{document_id}") == always | {200, 404, 422}
    assert statuses(front, "post", "/api/requests") == always | {201, 403, 408, 413, 415, 422}
    assert statuses(front, "get", "/api/requests") == always | {200, 403, 422}
    assert statuses(front, "get", "/api/requests/{request_id}") == always | {200, 404, 422}
    letters = "/api/admin/dead-letters"
    assert statuses(front, "get", letters) == always | {200, 403, 422}
    assert statuses(front, "post", letters + "/{letter_id}/send-back") == always | {202, 403, 404, 409, 422}
    assert statuses(front, "post", letters + "/discard") == always | {200, 403, 408, 413, 415, 422}
    assert statuses(front, "get", "/api/admin/queues") == always | {200, 403}
    for face in faces.values():
        assert statuses(face, "get", "/healthz") == statuses(face, "get", "/readyz") == {200, 503}


@pytest.mark.parametrize("face", FACES.values(), ids=list(FACES))
def test_problems_have_one_schema_and_the_frameworks_own_is_gone(face: FastAPI) -> None:
    document = face.openapi()
    assert openapi.SCHEMA in document["components"]["schemas"]
    assert "ValidationError" not in str(document)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert answer["content"] == {
                        MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{openapi.SCHEMA}"}}
                    }, (method, path, status)
    refs = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert refs <= document["components"]["schemas"].keys()


@pytest.mark.parametrize("face", FACES.values(), ids=list(FACES))
async def test_the_page_shows_every_operation_and_loads_nothing(face: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(face), base_url="http://face") as client:
        answer = await client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.text
    linked = re.findall(r"(?:src|href|action)=.([^\"' >]*)", page)
    assert [link for link in linked if not link.startswith("#")] == ["openapi.json"]
    assert "//" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    for path, methods in face.openapi()["paths"].items():
        for method in methods:
            assert f'data-method="{method.upper()}" data-path="{path}"' in page


@pytest.mark.parametrize("face", FACES.values(), ids=list(FACES))
async def test_the_page_shows_each_schema_once_and_links_to_it(face: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(face), base_url="http://face") as client:
        page = (await client.get("/docs")).text
    document = face.openapi()
    shown = re.findall(r'id="schema-([^"]+)"', page)
    assert sorted(shown) == shown == sorted(document["components"]["schemas"])
    assert set(re.findall(r'href="#schema-([^"]+)"', page)) == set(
        re.findall(r"'\$ref': '#/components/schemas/([^']+)'", str(document))
    )
    assert "$ref" not in page
    assert page.count("urn:workbot:problem:not-found") == 1


@pytest.mark.parametrize("face", FACES.values(), ids=list(FACES))
async def test_the_page_marks_what_needs_a_token(face: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(face), base_url="http://face") as client:
        page = (await client.get("/docs")).text
    shown = re.findall(
        r'<b class="method">(\w+)</b> <code>(.*?)</code>.*?(<small class="token">.*?</small>|)</summary>', page
    )
    listed = [
        (method.upper(), path, bool(operation.get("security")))
        for path, methods in face.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    assert [(method, path, bool(mark)) for method, path, mark in shown] == listed


async def test_the_gateways_page_says_where_the_calls_that_it_forwards_are_described() -> None:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(FACES["gateway api"]), base_url="http://face"
    ) as client:
        page = (await client.get("/docs")).text
    described = FACES["gateway api"].openapi()["info"]["description"]
    for name, paths in gateway.FORWARDED.items():
        assert f"{paths[0]} ({name})" in described
    assert "gateway&#39;s own calls" in page
    assert "/api/analytics (analytics)" in page


async def test_the_page_escapes_what_it_shows() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(small()), base_url="http://face") as client:
        page = (await client.get("/docs")).text
    assert "Small &lt;&amp;&gt; API" in page
    assert "Put &lt;b&gt;one&lt;/b&gt; there" in page


async def test_what_is_listed_is_what_is_answered() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(small()), base_url="http://face") as client:
        answer = await client.post("/things/1", json={})
    assert answer.status_code == 401
    listed = small().openapi()["components"]["schemas"][openapi.SCHEMA]
    assert set(listed["required"]) <= answer.json().keys() <= listed["properties"].keys()
