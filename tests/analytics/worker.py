"""The analytics process under test: `python -m tests.analytics.worker api <topics.toml> <group>`.

The real service, on topics and in a group of the test's own. What a sender's name says is done when their event is
counted: one that begins with "poison" raises, one that begins with "killer" ends the process as kill -9 does. While
there is a file HOLD beside the topics', nobody gets on with going through the table; with a file SLOW there, faust
fetches as it does by itself, and each fetch begins late.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiokafka.consumer.fetcher import Fetcher

from messaging import process
from schemas import topics
from services.analytics import app, counting, engine, fetching, lease, main, parts, tables

HOLD = "hold-walks"
SLOW = "slow-client"
LATE_SECONDS = 0.3

_fact = counting.fact
_everything = tables.Counts.everything
_fetched = Fetcher.fetched_records
_slow: list[str] = []


def fact(event: Any, at: float) -> counting.Fact:
    if event.sender.startswith("poison"):
        raise RuntimeError("told to fail")
    if event.sender.startswith("slowpoison"):
        # The second one is ended by the test.
        time.sleep(60 if _slow else 0.5)
        _slow.append(event.sender)
        raise RuntimeError("told to fail slowly")
    if event.sender.startswith("killer"):
        os.kill(os.getpid(), signal.SIGKILL)
    return _fact(event, at)


async def everything(self: tables.Counts) -> AsyncIterator[tuple[str, counting.Value]]:
    async for each in _everything(self):
        while (file.parent / HOLD).exists():
            await asyncio.sleep(0.05)
        yield each


async def fetched_late(self: Fetcher, *told: Any, **more: Any) -> Any:
    await asyncio.sleep(LATE_SECONDS)
    return await _fetched(self, *told, **more)


if __name__ == "__main__":
    file, parts.GROUP = Path(sys.argv[2]), sys.argv[3]
    del sys.argv[2:]
    counting.fact, engine.TIDY_SECONDS = fact, 0.5
    tables.Counts.everything = everything  # type: ignore[method-assign]
    if (file.parent / SLOW).exists():
        Fetcher.fetched_records = fetched_late
        del fetching.Thread._fetch_records
    lease.REGAIN_SECONDS = 2.0
    app.SESSION_SECONDS = 6.0  # the least that brokers take: a replay waits for its end
    listed = topics.load(file)
    topics.load = lambda path=file: listed
    process.run_one_of("analytics", main.AnalyticsSettings, main.STARTS)
