"""What happened, counted, over HTTP. A sender sees their own events, staff those of their tenant."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field, StringConstraints

from messaging.message import MAX_KEY_PART
from services.analytics.counting import READ_WITHIN, SECONDS, Keep, Window, bucket
from services.analytics.cube import Cube, Reading, rank
from web.openapi import answers
from web.problems import Problem, bad_input
from web.times import QueryTime
from web.tokens import Bearer, Identity, staff_only

PATH = "/api/analytics"
RETRY_SECONDS = 5
"""Retry-After while the tables recover, or another process counts."""

EARLIEST, LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
"""Times that can be asked for."""

MOST_POINTS = 2000
MOST_SENDERS = 1000
POINTS: dict[Window, int] = {"minute": 60, "hour": 48, "day": 30}
"""How many buckets a series has when nobody says since when."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY_PART)]
Since = Annotated[
    QueryTime | None, Query(alias="from", description="Widened to the beginning of its bucket; days are UTC's.")
]
Until = Annotated[QueryTime | None, Query(alias="to", description="Widened to the end of its bucket; now if unset.")]


class TypeView(BaseModel):
    """How many events of one type."""

    type: str
    count: int


class SenderView(BaseModel):
    """How many events of one sender, by type."""

    sender: str
    count: int
    types: dict[str, int]


class BucketView(BaseModel):
    """How many documents took at most so many seconds (null: any number), and more than the bucket before."""

    up_to_seconds: float | None
    count: int


class ReadingView(BaseModel):
    """From a document's receipt to the first time it was read, over the days (UTC) that the answer touches. `type`
    leaves it as it is."""

    count: int
    sum_seconds: float
    mean_seconds: float | None
    buckets: list[BucketView]


class EventsView(BaseModel):
    """Counts of the buckets of `window` that lie between the two times; `from` is null for all that was ever counted.

    Buckets from `kept_from` on are kept: what happened before is in no count any more. `senders` are the busiest
    first, the caller alone for a sender; `senders_left_out` had no room.
    """

    since: datetime | None = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    window: Window
    kept_from: datetime
    total: int
    types: list[TypeView]
    senders: list[SenderView]
    senders_left_out: int
    reading: ReadingView


class PointView(BaseModel):
    """One bucket: where it begins, and how many events happened in it."""

    start: datetime
    count: int


class SeriesView(BaseModel):
    """Every bucket between the two times, empty ones included. They begin at whole minutes, hours and days of UTC.

    Those from `kept_from` on are kept; a 0 before it says nothing.
    """

    window: Window
    kept_from: datetime
    since: datetime = Field(serialization_alias="from")
    until: datetime = Field(serialization_alias="to")
    points: list[PointView]


class _Span(NamedTuple):
    window: Window
    since: int
    until: int


def router(cube: Cube, ready: Callable[[], bool], types: Sequence[str], keep: Keep, bearer: Bearer) -> APIRouter:
    """The two routes. `types` are those that can be asked for."""
    routes = APIRouter(prefix=PATH, tags=["analytics"])
    caller = Annotated[Identity, Depends(bearer)]
    kind = Annotated[str | None, Query(description=f"One of {', '.join(types)}.")]

    def check(who: Identity, type_: str | None, sender: str | None) -> str | None:
        """Whose events may be counted for the caller: one sender's, or all (None)."""
        if type_ is not None and type_ not in types:
            raise bad_input("type", "unknown-type", f"No such events are counted; there are {', '.join(types)}.")
        if not who.staff and sender not in (None, who.sub):
            raise staff_only("other senders' events", "sender")
        if not ready():
            detail = "The counts are being made ready; ask again shortly."
            headers = {"Retry-After": str(RETRY_SECONDS)}
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", detail, headers=headers)
        return sender if who.staff else who.sub

    @routes.get(
        "/events", responses=answers(403), summary="How many events: a sender's own, or the tenant's for its staff"
    )
    async def events(
        who: caller,
        type: kind = None,
        sender: Name | None = None,
        since: Since = None,
        until: Until = None,
    ) -> EventsView:
        owner = check(who, type, sender)
        now = time.time()
        span = _span(_finest(since, now, keep), since, until, now, default=None)
        found = await cube.events(who.tenant, span.window, span.since, span.until, type_=type, sender=owner)
        by_type, busiest = await rank(found, MOST_SENDERS)
        days = _span("day", since, until, now, default=None)
        return EventsView(
            since=None if since is None else _time(span.since),
            until=_time(span.until),
            window=span.window,
            kept_from=_kept_from(span.window, now, keep),
            total=by_type.total(),
            types=[TypeView(type=name, count=count) for name, count in sorted(by_type.items())],
            senders=[
                SenderView(sender=name, count=sum(found[name].values()), types=dict(sorted(found[name].items())))
                for name in busiest
            ],
            senders_left_out=len(found) - len(busiest),
            reading=_reading(cube.reading(who.tenant, days.since, days.until, sender=owner)),
        )

    @routes.get("/series", responses=answers(403), summary="How many events in each minute, hour or day")
    async def series(
        who: caller,
        type: kind = None,
        window: Window = "hour",
        sender: Name | None = None,
        since: Since = None,
        until: Until = None,
    ) -> SeriesView:
        owner = check(who, type, sender)
        now = time.time()
        span = _span(window, since, until, now, default=POINTS[window])
        if (points := (span.until - span.since) // SECONDS[window]) > MOST_POINTS:
            detail = f"That would be {points} points, and at most {MOST_POINTS} are given; ask for a shorter time."
            raise bad_input("from", "too-many-points", detail)
        found = cube.series(who.tenant, window, span.since, span.until, type_=type, sender=owner)
        return SeriesView(
            window=window,
            kept_from=_kept_from(window, now, keep),
            since=_time(span.since),
            until=_time(span.until),
            points=[PointView(start=_time(start), count=count) for start, count in found],
        )

    return routes


def _finest(since: datetime | None, now: float, keep: Keep) -> Window:
    """The smallest window that still has all its buckets since then."""
    if since is not None:
        for window in SECONDS:
            if since.timestamp() >= now - keep.seconds(window):
                return window
    return "day"


def _kept_from(window: Window, now: float, keep: Keep) -> datetime:
    """Where the first bucket begins that has not had its time."""
    return _time(max(0, bucket(window, now - keep.seconds(window))))


def _span(
    window: Window, since: datetime | None, until: datetime | None, now: float, *, default: int | None
) -> _Span:
    """Whole buckets. Without `since`: `default` of them, or from the beginning on."""
    for name, moment in (("from", since), ("to", until)):
        if moment is not None and not EARLIEST <= moment < LATEST:
            raise bad_input(name, "no-such-time", f"Send a time from {EARLIEST:%Y} on and before {LATEST:%Y}.")
    if since is not None and until is not None and since >= until:
        raise bad_input("from", "empty-span", "Send a time before `to`.")
    size = SECONDS[window]
    end = now if until is None else until.timestamp()
    last = -(-int(end) // size) * size if end == int(end) else bucket(window, end) + size
    if since is not None:
        first = bucket(window, since.timestamp())
        if first >= last:
            raise bad_input("from", "empty-span", "Send a time that is not in the future, or a `to` behind it.")
        return _Span(window, first, last)
    return _Span(window, 0 if default is None else last - default * size, last)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _reading(found: Reading) -> ReadingView:
    return ReadingView(
        count=found.count,
        sum_seconds=round(found.seconds, 3),
        mean_seconds=round(found.seconds / found.count, 3) if found.count else None,
        buckets=[
            BucketView(up_to_seconds=end, count=count)
            for end, count in zip((*READ_WITHIN, None), found.within, strict=True)
        ],
    )
