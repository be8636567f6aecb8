"""Who may start, and who must stop first."""

import pytest

from messaging.errors import Misconfigured
from stack import order

NEEDS = {
    "postgres": (),
    "kafka": (),
    "registry": ("postgres",),
    "deploy": ("postgres", "kafka", "registry"),
    "api": ("deploy", "postgres"),
}


def test_what_starts_together() -> None:
    assert order.levels(NEEDS) == [["postgres", "kafka"], ["registry"], ["deploy"], ["api"]]


def test_a_child_waits_for_everything_it_needs() -> None:
    assert not order.may_start("deploy", NEEDS, {"postgres", "kafka"})
    assert order.may_start("deploy", NEEDS, {"postgres", "kafka", "registry"})


def test_a_child_stops_once_nothing_that_runs_needs_it() -> None:
    assert not order.may_stop("postgres", NEEDS, {"postgres", "registry"})
    assert order.may_stop("postgres", NEEDS, {"postgres", "kafka"})
    assert order.may_stop("api", NEEDS, set(NEEDS))


def test_without_what_only_a_finished_step_needed_a_child_starts_and_still_stops_first() -> None:
    assert order.may_start("api", NEEDS, {"postgres", "deploy"})
    assert not order.may_start("api", NEEDS, {"kafka", "registry", "deploy"})
    assert not order.may_start("api", NEEDS, {"postgres", "kafka", "registry"})
    running = set(NEEDS)
    gone = []
    while running:
        level = {name for name in running if order.may_stop(name, NEEDS, running)}
        gone.append(level)
        running -= level
    assert gone == [{"api"}, {"deploy"}, {"kafka", "registry"}, {"postgres"}]


def test_a_circle_and_an_unknown_name_are_refused() -> None:
    with pytest.raises(Misconfigured, match="circle: a, b"):
        order.check({"a": ("b",), "b": ("a",)})
    with pytest.raises(Misconfigured, match="a needs c"):
        order.check({"a": ("c",)})
