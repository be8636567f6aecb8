"""Every bad call of the APIs for requests, notifications and analytics, straight and through the gateway: a problem
that names what is at fault, never a fault of ours, and nothing is kept."""

import base64
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import jwt
import pytest

from services.analytics import parts as analytics_parts
from services.notifications import parts as notifications_parts
from tests.fixtures.processes import SECRET, Home, Running, migrated, running
from tests.fixtures.stack import Infra
from tests.gateway.conftest import Start

REQUESTS = "/api/requests"
NOTIFICATIONS = "/api/notifications"
SUBSCRIPTIONS = NOTIFICATIONS + "/subscriptions"
DELIVERIES = NOTIFICATIONS + "/deliveries"
STREAM = NOTIFICATIONS + "/stream"
EVENTS, SERIES = "/api/analytics/events", "/api/analytics/series"

ASK = {"title": "The printer is jammed", "body": "Third floor.", "team": "it"}
HOOK = {"channel": "webhook", "address": "https://example.com/hook"}
UP_TO = {"up_to": "0197c2a5-7b3e-7c55-8f6e-2f1f4a8e9b10"}
JSON = {"Content-Type": "application/json"}
UNKNOWN = "0197c2a5-7b3e-7c55-8f6e-2f1f4a8e9b10"

BODIES: Mapping[tuple[str, str], dict[str, Any]] = {
    ("POST", REQUESTS): ASK,
    ("POST", SUBSCRIPTIONS): HOOK,
    ("POST", NOTIFICATIONS + "/read"): UP_TO,
}
READS = (REQUESTS, NOTIFICATIONS, STREAM, SUBSCRIPTIONS, DELIVERIES, EVENTS, SERIES)


@dataclass(frozen=True)
class Call:
    """One bad call, and its answer: status, and the field that is named (None: none is)."""

    method: str
    path: str
    status: int
    field: str | None
    sent: Mapping[str, Any] = field(default_factory=dict)


def body(method: str, path: str, content: bytes, named: str | None = "body", status: int = 422) -> Call:
    return Call(method, path, status, named, {"content": content, "headers": JSON})


def query(path: str, name: str, value: str, status: int = 422) -> Call:
    return Call("GET", path, status, name, {"params": {name: value}})


def bodies() -> Iterator[tuple[str, Call]]:
    """What is no body of any call, and each field of each with what cannot be in it."""
    broken = {
        "nothing": b"",
        "blanks": b" \n",
        "cut off": b'{"title": "x',
        "not JSON": b"{title: x}",
        "a form": b"title=x",
        "not UTF-8": b'{"title": "\xff"}',
        "null": b"null",
        "a number": b"1",
        "a number without end": b"9" * 5000,
        "a list": b"[{}]",
        "text": b'"title"',
        "NaN": b"NaN",
        "deep": b"[" * 60_000,
        "deep in a field": b'{"title": ' + b'{"a":' * 50_000,
    }
    for (method, path), good in BODIES.items():
        for name, content in broken.items():
            yield f"{path} {name}", body(method, path, content)
        yield f"{path} too large", body(method, path, b" " * 2**20 + b"{}", status=413)
        yield f"{path} a name too many", body(method, path, json.dumps(good | {"x\0y": 1}).encode(), "x\0y")
        yield f"{path} half a name", body(method, path, b'{"\\ud800": 1, ' + json.dumps(good).encode()[1:])
        for content_type in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "nonsense", ""):
            sent = {"content": json.dumps(good), "headers": {"Content-Type": content_type}}
            yield f"{path} {content_type or 'no type'}", Call(method, path, 415, "Content-Type", sent)
        for name in good:
            for wrong in (None, 1, 1e308, True, [], ["x"], {}, "", "\0", "a\0b", "\ud800", "x" * 100_000):
                if (name, wrong) in (("body", ""),):
                    continue
                shown = f"{wrong!r}"[:20]
                yield f"{path} {name} {shown}", body(method, path, json.dumps(good | {name: wrong}).encode(), name)
            if name != "body":
                left = {other: value for other, value in good.items() if other != name}
                yield f"{path} no {name}", body(method, path, json.dumps(left).encode(), name)


def queries() -> Iterator[tuple[str, Call]]:
    numbers = ("", "x", "0x10", "1e9999", "1.5", "-1", "9" * 400, "\u0661\u0662", "1\0", "NaN", "null")
    ids = ("", "x", "0" * 400, UNKNOWN + "0", UNKNOWN[:-1], "a\0b", "%00", "\u0661" * 32, "'; drop table requests")
    times = (
        "",
        "yesterday",
        "2026-05-04",
        "2026-05-04T12:30:00",
        "2026-02-30T00:00:00Z",
        "2026-05-04T25:00:00Z",
        "2026-05-04T12:30:00+99:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "99999-01-01T00:00:00Z",
        "-1",
        "9" * 400,
        "1e400",
        "inf",
        "2026-05-04T12:30:00Z\0",
    )
    names = ("a\0b", "a\nb", "\x1f", "x" * 100_000)
    for path in (REQUESTS, NOTIFICATIONS, DELIVERIES):
        for value in (*numbers, "0", "201"):
            yield f"{path} limit {value[:20]!r}", query(path, "limit", value)
    for path in (REQUESTS, DELIVERIES):
        for value in ids:
            yield f"{path} cursor {value[:20]!r}", query(path, "cursor", value)
    for value in (*numbers, str(2**63)):
        yield f"{NOTIFICATIONS} cursor {value[:20]!r}", query(NOTIFICATIONS, "cursor", value)
        yield f"{STREAM} after {value[:20]!r}", query(STREAM, "after", value)
    for value in ("", "perhaps", "2", "a\0b"):
        yield f"{NOTIFICATIONS} unread {value!r}", query(NOTIFICATIONS, "unread", value)
        yield f"{DELIVERIES} state {value!r}", query(DELIVERIES, "state", value)
    for path, name in ((REQUESTS, "team"), (REQUESTS, "sender"), (NOTIFICATIONS, "team"), (SUBSCRIPTIONS, "team")):
        for value in names[:3]:
            yield f"{path} {name} {value[:20]!r}", query(path, name, value)
    for path in (EVENTS, SERIES):
        for name in ("from", "to"):
            for value in times:
                yield f"{path} {name} {value[:30]!r}", query(path, name, value)
        for value in (*names[:3], ""):
            yield f"{path} sender {value[:20]!r}", query(path, "sender", value)
            yield f"{path} type {value[:20]!r}", query(path, "type", value)
        yield f"{path} a long type", query(path, "type", "x" * 10_000)
        yield f"{path} a long sender", query(path, "sender", "x" * 10_000)
        span = {"params": {"from": "2026-05-04T12:30:00Z", "to": "2026-05-04T12:29:59Z"}}
        yield f"{path} back to front", Call("GET", path, 422, "from", span)
    for value in ("", "week", "HOUR", "hour\0"):
        yield f"{SERIES} window {value!r}", query(SERIES, "window", value)
    for path, name in ((REQUESTS, "team"), (NOTIFICATIONS, "team"), (SUBSCRIPTIONS, "team"), (REQUESTS, "sender")):
        yield f"{path} a long {name}", query(path, name, "x" * 10_000)


def paths() -> Iterator[tuple[str, Call]]:
    calls = {
        "request_id": ("GET", REQUESTS + "/{}"),
        "notification_id": ("POST", NOTIFICATIONS + "/{}/read"),
        "subscription_id": ("DELETE", SUBSCRIPTIONS + "/{}"),
    }
    for name, (method, path) in calls.items():
        for wrong in (UNKNOWN, "x", "%ff", "%F0%9F", "9" * 400, "a%20b", "'", "*", "{", "%5cu0000", "\u0661" * 32):
            yield f"{name} {wrong[:20]}", Call(method, path.format(wrong), 404, "id")
        for wrong in ("%00", "a%00b", "%1b", "%7f", UNKNOWN + "%0d"):
            yield f"{name} {wrong[:20]}", Call(method, path.format(wrong), 422, name)
    takes = {path: {"GET"} for path in READS} | {
        REQUESTS: {"GET", "POST"},
        SUBSCRIPTIONS: {"GET", "POST"},
        NOTIFICATIONS + "/read": {"POST"},
    }
    for path, methods in takes.items():
        for method in sorted({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - methods):
            yield f"{method} {path}", Call(method, path, 405, None)


def headers() -> Iterator[tuple[str, Call]]:
    for name, value in {
        "words": b"last",
        "negative": b"-1",
        "a fraction": b"1.5",
        "too many digits": b"9" * 19,
        "no end": b"9" * 8000,
        "other digits": "\u0661".encode(),
        "Latin-1": b"\xb2",
        "a list": b"1,2",
    }.items():
        yield (
            f"Last-Event-ID {name}",
            Call("GET", STREAM, 422, "Last-Event-ID", {"headers": {"Last-Event-ID": value}}),
        )
    key = "Idempotency-Key"
    for name, values in {
        "twice": [b"a", b"b"],
        "the same twice": [b"a", b"a"],
        "an empty one too": [b"a", b""],
        "empty": [b""],
        "long": [b"x" * 256],
        "a tab": [b"a\tb"],
        "not ASCII": ["clé".encode()],
    }.items():
        sent = {"json": ASK, "headers": [(key, value) for value in values]}
        yield f"{key} {name}", Call("POST", REQUESTS, 422, key, sent)


CASES: dict[str, Call] = {
    f"{kind}: {name}": call
    for kind, calls in (("body", bodies()), ("query", queries()), ("path", paths()), ("header", headers()))
    for name, call in calls
}


@dataclass(frozen=True)
class House:
    """The gateway with the services behind it, and what they keep."""

    gateway: Running
    services: Mapping[str, Running]
    homes: Sequence[Home]

    def owner(self, path: str) -> Running:
        """Who answers this path itself."""
        return next((face for prefix, face in self.services.items() if path.startswith(prefix)), self.gateway)

    def traces(self) -> list[object]:
        gateway, notifications = self.homes
        return [
            gateway.rows("select count(*), (select count(*) from outbox) from requests"),
            notifications.rows("select count(*), (select count(*) from reads) from subscriptions"),
        ]


@pytest.fixture(scope="module")
def house(infra: Infra, start: Start, home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with ExitStack() as stack:
        notifications_home = stack.enter_context(migrated(infra, "notifications", notifications_parts.MIGRATIONS))
        analytics_home = stack.enter_context(migrated(infra, "analytics", analytics_parts.MIGRATIONS))
        tables = {"tables_dir": tmp_path_factory.mktemp("tables")}
        notifications, analytics = (
            stack.enter_context(running(infra, where, name, "api", tmp_path_factory.mktemp(name), settings))
            for where, name, settings in (
                (notifications_home, "notifications", {}),
                (analytics_home, "analytics", tables),
            )
        )
        gateway = stack.enter_context(start("api", notifications_url=notifications.url, analytics_url=analytics.url))
        services = {NOTIFICATIONS: notifications, "/api/analytics": analytics}
        yield House(gateway, services, [home, notifications_home])
        for process in (gateway, *services.values()):
            assert "request.failed" not in process.log.read_text()


@pytest.fixture(scope="module")
def admin(house: House) -> Iterator[httpx.Client]:
    """An admin, wherever the call goes."""
    with house.gateway.client("ada", f"tenant-{uuid.uuid4().hex[:8]}", "admin") as client:
        yield client


def problem(answer: httpx.Response, status: int, named: str | None) -> dict[str, Any]:
    """Holds that it is a problem about this field; returns it."""
    assert answer.status_code == status, answer.text[:2000]
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["type"].startswith("urn:workbot:problem:")
    assert [error["field"] for error in found.get("errors", [])] == ([] if named is None else [named]), found
    assert str(found["detail"]).endswith("."), found
    assert len(answer.content) < 4000, "it does not send back all that it was sent"
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_bad_call_is_answered_with_what_is_wrong_with_it(house: House, admin: httpx.Client, case: str) -> None:
    call = CASES[case]
    before = None if call.method == "GET" else house.traces()
    for origin in {house.gateway.url, house.owner(call.path).url}:
        answer = admin.request(call.method, origin + call.path, **call.sent)
        problem(answer, call.status, call.field)
        if call.status == 405:
            assert answer.headers["allow"]
    if before is not None:
        assert house.traces() == before


ADDRESSES = {
    "no scheme": "example.com/hook",
    "no scheme but slashes": "//example.com/hook",
    "no slashes": "https:example.com/hook",
    "no host": "https:///hook",
    "a script": "javascript:alert(1)",
    "data": "data:text/html,x",
    "a file": "file:///etc/passwd",
    "FTP": "ftp://example.com/",
    "gopher": "gopher://example.com:25/_HELO",
    "a web socket": "wss://example.com/",
    "unix": "http+unix://%2fvar%2frun%2fdocker.sock/",
    "a user": "https://ann@example.com/",
    "a password": "https://ann:secret@example.com/",
    "an empty user": "https://:@example.com/",
    "an address as the user": "https://example.com@127.0.0.1/",
    "a host behind the fragment": "https://127.0.0.1#@example.com/",
    "a host behind the query": "https://127.0.0.1?@example.com/",
    "a backslash": "https://127.0.0.1\\@example.com/",
    "an escaped slash": "https://example.com%2f@127.0.0.1/",
    "port 0": "https://example.com:0/",
    "no such port": "https://example.com:65536/",
    "a negative port": "https://example.com:-1/",
    "a port of words": "https://example.com:https/",
    "loopback": "https://127.0.0.1/",
    "loopback with a port": "https://127.0.0.1:3320/",
    "short loopback": "https://127.1/",
    "octal loopback": "https://0177.0.0.1/",
    "hexadecimal loopback": "https://0x7f000001/",
    "loopback as one number": "https://2130706433/",
    "loopback in circles": "https://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/",
    "loopback in full width": "https://\uff11\uff12\uff17.\uff10.\uff10.\uff11/",
    "loopback with Chinese dots": "https://127\u30020\u30020\u30021/",
    "unspecified": "https://0.0.0.0/",
    "private": "https://10.0.0.1/",
    "private, too": "https://192.168.1.1/",
    "shared": "https://100.64.0.1/",
    "link-local": "https://169.254.169.254/latest/meta-data/",
    "multicast": "https://224.0.0.1/",
    "broadcast": "https://255.255.255.255/",
    "IPv6 loopback": "https://[::1]/",
    "IPv6 unspecified": "https://[::]/",
    "IPv6 mapped": "https://[::ffff:127.0.0.1]/",
    "IPv6 mapped as hexadecimal": "https://[::ffff:a00:1]/",
    "IPv6 NAT64": "https://[64:ff9b::7f00:1]/",
    "IPv6 6to4": "https://[2002:7f00:1::]/",
    "IPv6 unique local": "https://[fd00::1]/",
    "IPv6 link-local": "https://[fe80::1]/",
    "IPv6 with a zone": "https://[fe80::1%25eth0]/",
    "IPv6 multicast": "https://[ff02::1]/",
    "IPv6 cut off": "https://[::1/",
    "IPv6 of nothing": "https://[]/",
    "localhost": "https://localhost/",
    "localhost with a dot": "https://localhost./",
    "under localhost": "https://a.localhost/",
    "one word": "https://intranet/",
    "local": "https://printer.local/",
    "internal": "https://metadata.google.internal/",
    "two dots": "https://example..com/",
    "a dot in front": "https://.example.com/",
    "a long label": f"https://{'a' * 64}.com/",
    "a long name": f"https://{'a.' * 127}com/",
    "a blank": "https://exa mple.com/",
    "a blank, escaped": "https://exa%20mple.com/",
    "a line end in the name": "https://exa\nmple.com/",
    "a line end in the path": "https://example.com/\r\nX-Evil: 1",
    "NUL in the path": "https://example.com/\0",
    "a bell in the path": "https://example.com/\a",
    "half a character": "https://example.com/\ud800",
    "half a character in the name": "https://\ud800.com/",
    "what is no Punycode": "https://xn--\u00fc.com/",
    "brackets": "https://exa[mple].com/",
    "a wildcard": "https://*.example.com/",
    "too long": "https://example.com/" + "x" * 2048,
    "several": "https://example.com/ https://example.org/",
    "a blank in the path": "https://example.com/my hook",
    "a blank of another kind": "https://example.com/my\u2003hook",
    "blanks": "   ",
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_a_webhook_goes_to_the_public_internet_only(house: House, admin: httpx.Client, case: str) -> None:
    sent = json.dumps(HOOK | {"address": ADDRESSES[case]})
    for origin in (house.gateway.url, house.services[NOTIFICATIONS].url):
        problem(admin.post(origin + SUBSCRIPTIONS, content=sent, headers=JSON), 422, "address")
        assert admin.get(origin + SUBSCRIPTIONS).json()["items"] == []


def test_what_a_webhook_may_be(house: House) -> None:
    good = (
        "https://example.com/hook",
        "http://example.com:8080/a?b=c",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]:8443/",
        "https://b\u00fccher.example.com/",
        "https://\u4f8b\u3048.jp/",
        " https://example.com./x ",
    )
    with house.gateway.client("ada", f"tenant-{uuid.uuid4().hex[:8]}", "admin") as ada:
        for address in good:
            answer = ada.post(SUBSCRIPTIONS, json=HOOK | {"address": address})
            assert (answer.status_code, answer.json().get("address")) == (201, address.strip()), answer.text


def signed(**claims: Any) -> str:
    now = int(time.time())
    good = {"sub": "ann", "tenant": "acme", "roles": ["admin"], "sid": "s", "iat": now, "exp": now + 600}
    said = {name: value for name, value in (good | claims).items() if value is not ...}
    return f"Bearer {jwt.encode(said, SECRET, algorithm='HS256')}"


def unsigned() -> str:
    head, claims = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "none", "typ": "JWT"}, {"sub": "ann", "tenant": "acme", "roles": ["admin"], "sid": "s"})
    )
    return f"Bearer {head}.{claims}."


TOKENS: dict[str, str | None] = {
    "none": None,
    "nothing": "",
    "another scheme": "Basic YW5uOnNlY3JldA==",
    "a scheme alone": "Bearer",
    "nonsense": "Bearer nonsense",
    "a token without end": "Bearer " + "x" * 30_000,
    "not ASCII": "Bearer \u00e9\u00e9",
    "forged": "Bearer " + jwt.encode({"sub": "ann", "tenant": "acme"}, "f" * 40, algorithm="HS256"),
    "unsigned": unsigned(),
    "of another algorithm": "Bearer " + jwt.encode({"sub": "ann"}, SECRET, algorithm="HS512"),
    "expired": signed(exp=int(time.time()) - 60),
    "of tomorrow": signed(iat=int(time.time()) + 86_400),
    "without an end": signed(exp=...),
    "an end that is none": signed(exp="soon"),
    "without a person": signed(sub=...),
    "without a tenant": signed(tenant=...),
    "without roles": signed(roles=...),
    "without a session": signed(sid=...),
    "an unknown role": signed(roles=["root"]),
    "roles as a word": signed(roles="admin"),
    "no roles": signed(roles=[]),
    "a person that is a number": signed(sub=1),
    "a tenant with a colon": signed(tenant="a:b"),
    "a tenant with a line end": signed(tenant="a\nb"),
    "a person with a NUL": signed(sub="a\0b"),
    "a person without end": signed(sub="x" * 300),
}


@pytest.mark.parametrize("case", TOKENS)
def test_nothing_is_told_or_taken_without_a_token_of_ours(house: House, case: str) -> None:
    header = TOKENS[case]
    sent = {} if header is None else {"Authorization": header.encode()}
    calls: list[tuple[str, str, Any]] = [("GET", path, None) for path in READS]
    calls += [(method, path, good) for (method, path), good in BODIES.items()]
    calls += [("DELETE", f"{SUBSCRIPTIONS}/{UNKNOWN}", None), ("POST", f"{NOTIFICATIONS}/{UNKNOWN}/read", None)]
    before = house.traces()
    with httpx.Client(trust_env=False, timeout=30) as client:
        for method, path, good in calls:
            for origin in {house.gateway.url, house.owner(path).url}:
                answer = client.request(method, origin + path, json=good, headers=sent)
                found = problem(answer, 401, "Authorization")
                assert found["type"] == "urn:workbot:problem:unauthorized"
                assert answer.headers["www-authenticate"].startswith("Bearer")
    assert house.traces() == before


def test_parameters_nobody_knows_change_nothing(house: House, admin: httpx.Client) -> None:
    for path in READS:
        if path != STREAM:
            for origin in {house.gateway.url, house.owner(path).url}:
                asked = {"nonsense": "1", "offset": "-5", "order_by": "1; drop table requests"}
                answers = [admin.get(origin + path, params=parameters) for parameters in ({}, asked)]
                assert [answer.status_code for answer in answers] == [200, 200]
                assert answers[0].json().keys() == answers[1].json().keys()


def test_what_another_tenant_has_is_nowhere(house: House) -> None:
    """Its ids are unknown, its cursors lead to nothing of it."""
    mine, other = (f"tenant-{uuid.uuid4().hex[:8]}" for _ in range(2))
    with house.gateway.client("ada", mine, "admin") as ada, house.gateway.client("ada", other, "admin") as eve:
        request = ada.post(REQUESTS, json=ASK).json()["id"]
        ada.post(REQUESTS, json=ASK)
        subscription = ada.post(SUBSCRIPTIONS, json=HOOK | {"team": "it"}).json()["id"]
        problem(eve.get(f"{REQUESTS}/{request}"), 404, "id")
        problem(eve.delete(f"{SUBSCRIPTIONS}/{subscription}"), 404, "id")
        assert eve.get(SUBSCRIPTIONS, params={"team": "it"}).json()["items"] == []
        last = ada.get(REQUESTS, params={"limit": 1}).json()["next"]
        assert last is not None
        assert eve.get(REQUESTS, params={"cursor": last}).json() == {"items": [], "next": None}
        assert eve.get(DELIVERIES, params={"cursor": request}).json() == {"items": [], "next": None}
        assert len(ada.get(SUBSCRIPTIONS, params={"team": "it"}).json()["items"]) == 1
        assert len(ada.get(REQUESTS).json()["items"]) == 2
        told = str(uuid.uuid4())
        house.homes[1].change(
            "with feed as (insert into feeds values (%s, 1) returning tenant)"
            " insert into notifications (id, tenant, seq, event_id, audience_kind, audience, kind, title, body, href)"
            " select %s, tenant, 1, tenant, 'team', 'it', 'request_created', 'no.', '', '/' from feed",
            mine,
            told,
        )
        problem(eve.post(f"{NOTIFICATIONS}/{told}/read"), 404, "id")
        problem(eve.post(f"{NOTIFICATIONS}/read", json={"up_to": told}), 404, "up_to")
        assert [item["read_at"] for item in ada.get(NOTIFICATIONS).json()["items"]] == [None]
