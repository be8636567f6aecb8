"""The audit of requests finds what it is there to find: each fault is planted once."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.chaos import requestaudit
from tests.chaos.filing import BURST, CONNECTIONS, PER_SECOND, Asked, Plan
from tests.chaos.insisting import Refusal
from tests.chaos.requestaudit import Out, Row, Told, Trail

KEY = "acme:ann"
NAMES = ("a", "b", "c")


def asked(name: str, number: int, *refusals: Refusal) -> Asked:
    return Asked(number, "acme", "ann", "it", name, 1.0, 2.0, refusals)


WHOLE = Trail(
    asked=[asked(name, number) for number, name in enumerate(NAMES)],
    rows=[Row(name, KEY, "it") for name in NAMES],
    out=[Out(KEY, f"event-{name}", name) for name in NAMES],
    told=[Told(KEY, f"event-{name}", name, "it", number, 3.0) for number, name in enumerate(NAMES)],
    counted={KEY: 3},
)
AGAIN = Out(KEY, "event-a", "a")


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert requestaudit.lost(WHOLE, 3) == []
    assert requestaudit.twice(WHOLE) == []
    assert requestaudit.out_of_order(WHOLE) == []


@pytest.mark.parametrize(
    ("trail", "jobs", "said"),
    [
        (WHOLE, 4, "1 requests were never answered 201"),
        (replace(WHOLE, rows=WHOLE.rows[:2]), 3, "c: answered 201, but not stored"),
        (replace(WHOLE, out=WHOLE.out[:2]), 3, "c: its event did not go out"),
        (replace(WHOLE, told=WHOLE.told[:2]), 3, "c: its team was not told"),
        (replace(WHOLE, counted={KEY: 2}), 3, f"{KEY}: analytics counted 2 of 3 records"),
        (replace(WHOLE, out=[*WHOLE.out, AGAIN]), 3, f"{KEY}: analytics counted 3 of 4 records"),
        (replace(WHOLE, counted=None), 3, "analytics does not answer"),
    ],
)
def test_what_is_missing_somewhere_is_lost(trail: Trail, jobs: int, said: str) -> None:
    assert requestaudit.lost(trail, jobs) == [said]


@pytest.mark.parametrize(
    ("trail", "said"),
    [
        (replace(WHOLE, asked=[*WHOLE.asked, asked("a", 3)]), "a: the answer to 2 requests"),
        (replace(WHOLE, asked=WHOLE.asked[:2]), "c: stored, and nobody's answer"),
        (replace(WHOLE, out=[*WHOLE.out, Out(KEY, "another", "a")]), "a: 2 different events"),
        (replace(WHOLE, out=[*WHOLE.out, Out(KEY, "event-d", "d")]), "d: an event, but not stored"),
        (replace(WHOLE, told=[*WHOLE.told, replace(WHOLE.told[2], seq=4)]), "c: told 2 times"),
        (replace(WHOLE, told=[*WHOLE.told[:2], replace(WHOLE.told[2], team="hr")]), "c: told hr"),
        (replace(WHOLE, out=[*WHOLE.out, AGAIN], counted={KEY: 5}), f"{KEY}: analytics counted 5 of 4 records"),
        (replace(WHOLE, counted={KEY: 4}), f"{KEY}: analytics counted 4 of 3 records"),
    ],
)
def test_what_there_is_too_much_of_is_found(trail: Trail, said: str) -> None:
    assert requestaudit.twice(trail) == [said]


def test_a_repeat_that_is_known_by_its_id_is_no_fault_and_is_counted() -> None:
    trail = replace(WHOLE, out=[*WHOLE.out, AGAIN], counted={KEY: 4})
    assert requestaudit.lost(trail, 3) + requestaudit.twice(trail) == []
    assert requestaudit.out_of_order(trail) == []
    assert trail.repeats == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: replace(t, out=[t.out[1], t.out[0], t.out[2]]), f"{KEY}: b on the topic"),
        (lambda t: replace(t, told=[replace(t.told[1], seq=-1), t.told[0]]), f"{KEY}: b among the notifications"),
        (lambda t: replace(t, out=[*t.out[:2], Out("acme:ben", "event-c", "c")]), "acme:ben: c on the topic"),
    ],
)
def test_what_comes_out_of_turn_or_under_another_key_is_found(change: Callable[[Trail], Trail], said: str) -> None:
    assert requestaudit.out_of_order(change(WHOLE)) == [said]


def test_only_a_503_while_postgres_was_away_is_no_refusal() -> None:
    answers = [Refusal("503", 4.0, 5.0), Refusal("503", 9.0, 11.0), Refusal("ReadTimeout", 4.0, 5.0)]
    found = requestaudit.refused([asked("a", 7, *answers)], [(4.0, 6.0)])
    assert found == ["request 7: 503 after 2.0 s", "request 7: ReadTimeout after 1.0 s"]


def test_500_are_due_at_once_and_the_others_at_a_steady_pace() -> None:
    plan = Plan("chaos", 1500, 1500)
    due = [plan.due(number) for number in range(plan.jobs)]
    at_once = [moment for moment in due if due.count(moment) > 1]
    assert (len(at_once), set(at_once)) == (BURST + 1, {500 / PER_SECOND})
    assert due == sorted(due)
    assert due[-1] == pytest.approx((1500 - BURST) / PER_SECOND, abs=0.1)


def test_every_request_has_one_sender_and_the_senders_are_many() -> None:
    plan = Plan("chaos", 1500, 1500)
    numbers = [number for connection in range(CONNECTIONS) for number in plan.numbers(connection)]
    assert sorted(numbers) == list(range(1500))
    assert len({plan.sender(connection) for connection in range(CONNECTIONS)}) == CONNECTIONS
    assert {plan.sender(connection)[0] for connection in range(CONNECTIONS)} == set(plan.tenants)
