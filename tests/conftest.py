"""What every test may use: see tests/fixtures."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

ROOT = Path(__file__).parent

pytest_plugins = ["tests.fixtures.ports", "tests.fixtures.stack"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the processes run on: it differs from the standard one where it matters (timer handles)."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_configure() -> None:
    """Who is started with Ctrl-C ignored (by `&` in a script, or as one of several processes) hands that down, and no
    test could press it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW = ("analytics", "chaos", "stack", "test_howtos.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first: without servers, then with shared ones, then the long ones, most of which start their own.

    The other way round when several processes share them by files, or one would end with the longest alone.
    """

    def rank(item: pytest.Item) -> int:
        if item.path.relative_to(ROOT).parts[0] in SLOW:
            return 2
        return int("infra" in getattr(item, "fixturenames", ()))

    items.sort(key=rank, reverse=hasattr(config, "workerinput"))
