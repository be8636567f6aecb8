"""The two routes: who may see what, which times are meant, and what is said of bad input. No servers behind them."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from schemas import topics
from services.analytics import parts
from services.analytics.counting import Fact, Place, Tally, Value
from services.analytics.cube import Cube
from services.analytics.settings import AnalyticsSettings
from tests.analytics.test_counting import KEEP
from tests.fixtures.processes import SECRET, token
from web.tokens import Bearer

EVENTS, SERIES = "/api/analytics/events", "/api/analytics/series"
HOUR, DAY = 3600, 86_400
MOMENT = time.time()


class Engine:
    def __init__(self) -> None:
        self.whole = True

    def ready(self) -> bool:
        return self.whole

    def healthy(self) -> bool:
        return True


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def cube() -> Cube:
    """Ann had a request now, an hour ago and ten days ago, and a document read in 4 s; Bob one; one elsewhere."""
    cube, table, now = Cube(), dict[str, Value](), MOMENT
    facts = [
        Fact("request.created", "acme", "ann", now),
        Fact("request.created", "acme", "ann", now - HOUR),
        Fact("request.created", "acme", "ann", now - 10 * DAY),
        Fact("document.received", "acme", "ann", now - 4, "d", began=True),
        Fact("document.read", "acme", "ann", now, "d"),
        Fact("request.created", "acme", "bob", now),
        Fact("request.created", "other", "ann", now),
    ]
    tally = Tally(table.get, KEEP)
    for offset, fact in enumerate(facts):
        tally.add(Place("t", 0, offset), fact, now)
    for key, value in tally.take():
        cube.apply(key, table.get(key), value)
    return cube


@pytest.fixture
def client(engine: Engine, cube: Cube) -> Iterator[TestClient]:
    settings = AnalyticsSettings(database_url="postgresql://x@y/z", tables_dir="/nowhere")
    face = parts.make_api_face(
        settings,
        MagicMock(),
        engine,
        MagicMock(healthy=lambda: True),
        cube,
        topics.load(),
        Bearer(SECRET),  # type: ignore[arg-type]
    )
    with TestClient(face, raise_server_exceptions=False) as client:
        yield client


def signed(sub: str, *roles: str, tenant: str = "acme") -> dict[str, str]:
    return {"Authorization": f"Bearer {token(sub, tenant, *roles)}"}


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def test_staff_see_their_tenant_by_sender(client: TestClient) -> None:
    answer = client.get(EVENTS, headers=signed("eve", "viewer"))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["from"], found["window"], found["total"]) == (None, "day", 6)
    assert found["types"] == [
        {"type": "document.read", "count": 1},
        {"type": "document.received", "count": 1},
        {"type": "request.created", "count": 4},
    ]
    assert [(each["sender"], each["count"]) for each in found["senders"]] == [("ann", 5), ("bob", 1)]
    assert found["senders"][1]["types"] == {"request.created": 1}
    assert (found["reading"]["count"], round(found["reading"]["sum_seconds"])) == (1, 4)
    assert [each["up_to_seconds"] for each in found["reading"]["buckets"] if each["count"]] == [5.0]


def test_a_sender_sees_their_own_and_nobody_elses(client: TestClient) -> None:
    for path in (EVENTS, SERIES):
        answer = client.get(path, headers=signed("bob", "sender"), params={"sender": "ann"})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (403, "sender")
        assert client.get(path).status_code == 401
    found = client.get(EVENTS, headers=signed("bob", "sender")).json()
    assert (found["total"], [each["sender"] for each in found["senders"]], found["reading"]["count"]) == (
        1,
        ["bob"],
        0,
    )
    points = client.get(SERIES, headers=signed("bob", "sender"), params={"sender": "bob"}).json()["points"]
    assert sum(point["count"] for point in points) == 1


def test_events_are_filtered(client: TestClient) -> None:
    def total(**params: str) -> tuple[int, str]:
        found = client.get(EVENTS, headers=signed("eve", "admin"), params=params).json()
        return found["total"], found["window"]

    assert total(type="request.created") == (4, "day")
    assert total(type="request.created", sender="ann") == (3, "day")
    assert total(sender="nobody") == (0, "day")
    assert total(**{"from": ago(1800)}) == (4, "minute")
    assert total(**{"from": ago(3 * HOUR)}) == (5, "minute")
    assert total(**{"from": ago(11 * DAY)}) == (6, "hour")
    assert total(**{"from": ago(11 * DAY), "to": ago(9 * DAY)}) == (1, "hour")
    assert total(**{"from": ago(70 * DAY)}) == (6, "day")
    assert total(to=ago(5 * DAY)) == (1, "day")


@pytest.mark.parametrize(("window", "points", "total"), [("minute", 60, 4), ("hour", 48, 5), ("day", 30, 6)])
def test_a_series_has_every_bucket(client: TestClient, window: str, points: int, total: int) -> None:
    answer = client.get(SERIES, headers=signed("eve", "agent"), params={"window": window})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    starts = [datetime.fromisoformat(point["start"]) for point in found["points"]]
    assert (len(starts), found["window"]) == (points, window)
    assert starts == sorted(set(starts))
    assert found["points"][0]["start"] == found["from"]
    # An hour ago may be the sixtieth minute or the one before it.
    assert sum(point["count"] for point in found["points"]) in (total, total + (window == "minute"))


def test_it_says_from_when_on_a_zero_is_one(client: TestClient) -> None:
    """By window: the bucket that holds the moment before which none is kept."""

    def kept_from(path: str, **params: str) -> tuple[str, float]:
        found = client.get(path, headers=signed("eve", "viewer"), params=params).json()
        kept = datetime.fromisoformat(found["kept_from"])
        assert kept.timestamp() % {"minute": 60, "hour": HOUR, "day": DAY}[found["window"]] == 0
        return found["window"], (datetime.now(UTC) - kept).total_seconds()

    for window, days in (("minute", 2), ("hour", 60), ("day", 800)):
        told, age = kept_from(SERIES, window=window)
        assert told == window
        assert days * DAY <= age <= days * DAY + {"minute": 60, "hour": HOUR, "day": DAY}[window] + 60
        told, since = kept_from(EVENTS, **{"from": ago(days * DAY - 60)})
        assert (told, round(since - age) // 60) == (window, 0)


@pytest.mark.parametrize("zone", ["+01:00", "+0100", "-01:00", "Z"])
def test_a_plus_that_an_address_made_a_blank_is_understood(client: TestClient, zone: str) -> None:
    moment = f"2026-05-04T12:30:00{zone}"
    encoded = client.get(SERIES, headers=signed("eve", "viewer"), params={"from": moment, "window": "day"})
    as_is = client.get(f"{SERIES}?from={moment}&window=day", headers=signed("eve", "viewer"))
    assert encoded.status_code == as_is.status_code == 200, as_is.text
    assert as_is.json()["from"] == encoded.json()["from"]


def test_a_series_of_one_type_over_a_time(client: TestClient) -> None:
    hour = int(MOMENT // HOUR) * HOUR
    params = {
        "window": "hour",
        "type": "document.read",
        "from": datetime.fromtimestamp(hour - 5 * HOUR, UTC).isoformat(),
        "to": datetime.fromtimestamp(hour + HOUR, UTC).isoformat(),
    }
    found = client.get(SERIES, headers=signed("eve", "viewer"), params=params).json()
    assert [point["count"] for point in found["points"]] == [0] * 5 + [1]


@pytest.mark.parametrize(
    ("path", "params", "field", "kind"),
    [
        (EVENTS, {"type": "request.forgotten"}, "type", "unknown-type"),
        (EVENTS, {"from": "yesterday"}, "from", "bad-input"),
        (EVENTS, {"from": "2026-05-04T12:30:00"}, "from", "bad-input"),
        (EVENTS, {"from": "2026-05-04 12:30:00"}, "from", "bad-input"),
        (EVENTS, {"from": "2026-05-04T12:30:00 99:00"}, "from", "bad-input"),
        (EVENTS, {"from": "2026-05-04T12:30:00Z", "to": "2026-05-04T12:30:00Z"}, "from", "empty-span"),
        (EVENTS, {"from": "2999-05-04T12:30:00Z"}, "from", "empty-span"),
        (SERIES, {"from": "2999-05-04T12:30:00Z"}, "from", "empty-span"),
        (EVENTS, {"sender": ""}, "sender", "bad-input"),
        (EVENTS, {"sender": "a\x00b"}, "sender", "bad-character"),
        (SERIES, {"window": "week"}, "window", "bad-input"),
        (SERIES, {"window": "minute", "from": "2026-05-04T12:30:00Z"}, "from", "too-many-points"),
        (SERIES, {"to": "1960-05-04T12:30:00Z"}, "to", "no-such-time"),
    ],
)
def test_bad_input_is_named(client: TestClient, path: str, params: dict[str, str], field: str, kind: str) -> None:
    answer = client.get(path, headers=signed("eve", "viewer"), params=params)
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == f"urn:workbot:problem:{kind}"
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_the_ends_of_time_are_refused(client: TestClient, moment: str) -> None:
    for path in (EVENTS, SERIES):
        for name in ("from", "to"):
            answer = client.get(path, headers=signed("eve", "viewer"), params={name: moment})
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, name), answer.text


def test_while_the_tables_are_not_whole_it_says_so(client: TestClient, engine: Engine) -> None:
    engine.whole = False
    for path in (EVENTS, SERIES):
        answer = client.get(path, headers=signed("eve", "viewer"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_the_routes_are_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    for path in (EVENTS, SERIES):
        assert {"200", "401", "403", "422", "503"} <= set(described[path]["get"]["responses"])
