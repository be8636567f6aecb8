"""What every test may use: see tests/fixtures."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop

pytest_plugins = ["tests.fixtures.stack"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the processes run on: it differs from the standard one where it matters (timer handles)."""
    return {"uvloop": uvloop.new_event_loop}
