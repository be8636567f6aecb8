"""The live stream over HTTP."""

import threading
import time
from collections.abc import Iterator

import httpx

from schemas.events import RequestCreated
from tests.fixtures.processes import Home, Running
from tests.notifications.conftest import Speaker, Start, following, read, request
from tests.notifications.test_api import PATH, wait_for
from web import sse, tokens

Events = Iterator[tuple[int, dict[str, object]]]


def taken(count: int, events: Events) -> list[tuple[int, dict[str, object]]]:
    return [next(events) for _ in range(count)]


async def test_what_happens_is_seen_at_once(face: Running, speaker: Speaker, tenant: str) -> None:
    with face.client("ann", tenant, "sender") as ann, following(ann) as events:
        await speaker.say(read(tenant, "ann"), read(tenant, "bob"), request(tenant, "ann"))
        await speaker.say(read(tenant, "ann", "waiting_for_review"))
        (_, first), (_, second) = taken(2, events)
        assert [first["kind"], second["kind"]] == ["document_approved", "document_waits"]
        assert first.keys() == wait_for(ann, 2)[0].keys()


async def test_a_teams_stream_holds_what_that_team_is_told(face: Running, speaker: Speaker, tenant: str) -> None:
    """What was missed, and what comes; a person's own notifications are not the team's."""

    def said(team: str, title: str) -> RequestCreated:
        return request(tenant, team=team, title=title)

    with face.client("rob", tenant, "agent") as rob:
        await speaker.say(said("it", "1"), said("hr", "2"), read(tenant, "rob"), said("it", "3"))
        wait_for(rob, 4)
        with following(rob, 0, team="it") as events:
            await speaker.say(read(tenant, "rob"), said("hr", "4"), said("it", "5"))
            found = taken(3, events)
    assert [event["title"] for _, event in found] == [f"New request: {number}" for number in (1, 3, 5)]
    with face.client("ann", tenant, "sender") as ann:
        refused = ann.get(f"{PATH}/stream", params={"team": "it"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (403, "team")
        assert "Only staff (admin, agent, reviewer, viewer) may see what a team is told;" in refused.text


async def test_a_break_leaves_no_gap_and_no_duplicate(face: Running, speaker: Speaker, tenant: str) -> None:
    titles = [f"New request: no. {number}" for number in range(30)]

    async def say(numbers: range) -> None:
        for number in numbers:
            await speaker.say(request(tenant, title=f"no. {number}"))

    with face.client("rob", tenant, "agent") as rob:
        with following(rob) as events:
            await say(range(10))
            found = taken(6, events)
        await say(range(10, 20))
        wait_for(rob, 20)
        with following(rob, found[-1][0]) as events:
            await say(range(20, 30))
            found += taken(24, events)
        listed = rob.get(PATH, params={"limit": 5}).json()
        with following(rob, listed["stream"]) as events:
            await speaker.say(request(tenant, title="the next"))
            assert taken(1, events)[0][1]["title"] == "New request: the next"
    assert [event["title"] for _, event in found] == titles
    assert [number for number, _ in found] == sorted({number for number, _ in found})


async def test_a_second_process_is_woken_too(start: Start, speaker: Speaker, tenant: str) -> None:
    """Which of the two consumes the event is up to Kafka; both followers see it."""
    with (
        start() as one,
        start() as two,
        one.client("ann", tenant, "sender") as here,
        two.client("ann", tenant, "sender") as there,
        following(here) as first,
        following(there) as second,
    ):
        await speaker.say(read(tenant, "ann"))
        assert taken(1, first) == taken(1, second)


def test_a_stream_ends_with_its_token(face: Running, tenant: str) -> None:
    """Before the first sign of life would be sent."""
    token = tokens.issue(face.secret, "ann", tenant, ["sender"], 4)
    with httpx.Client(base_url=face.url, timeout=30, trust_env=False) as ann:
        headers = {"Authorization": f"Bearer {token}"}
        with ann.stream("GET", f"{PATH}/stream", headers=headers) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                assert line != sse.HEARTBEAT.decode().strip()
        assert ann.get(PATH, headers=headers).status_code == 401


def test_a_stop_ends_streams_cleanly(start: Start, tenant: str) -> None:
    ended: list[object] = []

    def follow(client: httpx.Client) -> None:
        with following(client) as events:
            begun.set()
            ended.append(list(events))

    begun = threading.Event()
    with start() as process, process.client("ann", tenant, "sender") as ann:
        thread = threading.Thread(target=follow, args=(ann,))
        thread.start()
        assert begun.wait(20)
        process.process.terminate()
        assert process.process.wait(20) == 0
        thread.join(20)
    assert ended == [[]]


async def test_who_does_not_read_costs_nobody_anything(
    face: Running, home: Home, speaker: Speaker, tenant: str
) -> None:
    """One client opens a stream and reads nothing, while thousands of notifications come; another one gets all."""
    with face.client("rob", tenant, "agent") as rob, face.client("eve", tenant, "agent") as eve:
        with rob.stream("GET", f"{PATH}/stream") as unread, following(eve) as events:
            assert unread.status_code == 200
            body = "x" * 1900
            # As the service does it: the number and what it counts in one transaction.
            home.change(
                "with feed as (insert into feeds values (%s, 3000) returning tenant)"
                " insert into notifications"
                " (id, tenant, seq, event_id, audience_kind, audience, kind, title, body, href)"
                " select gen_random_uuid(), tenant, n, tenant || n, 'team', 'it', 'request_created', 'no.', %s, '/'"
                " from feed, generate_series(1, 3000) n",
                tenant,
                body,
            )
            numbers: list[int] = []
            last = 0
            deadline = time.monotonic() + 60
            while last < 3000:
                assert time.monotonic() < deadline
                try:
                    last, _ = next(events)
                    numbers.append(last)
                except StopIteration:
                    break
        if last < 3000:  # 3,000 at once are more than a queue holds: it was dropped, and comes back
            with following(eve, last) as events:
                numbers += [number for number, _ in taken(3000 - last, events)]
    assert numbers == list(range(1, 3001))
