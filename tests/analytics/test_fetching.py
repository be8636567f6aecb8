"""Which partitions a fetch is for, whatever happens to the set that said so."""

import asyncio
from typing import Any

import pytest
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from services.analytics.fetching import Thread

FIRST, SECOND = TP("events", 0), TP("events", 1)


async def test_a_fetch_is_for_what_was_asked_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    asked: list[object] = []

    async def fetch(
        _self: object, _consumer: object, places: set[TP], timeout: float, max_records: int
    ) -> dict[TP, list[Any]]:
        begun.set()
        await go_on.wait()
        asked.append((set(places), timeout, max_records))
        return {FIRST: ["a record"]}

    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "_fetch_records", fetch)
    thread = object.__new__(Thread)
    active = {FIRST, SECOND}
    fetching = asyncio.create_task(thread._fetch_records(None, active, timeout=1.0, max_records=5))
    await begun.wait()
    active.clear()
    go_on.set()
    assert await fetching == {FIRST: ["a record"]}
    assert asked == [({FIRST, SECOND}, 1.0, 5)]
    # Kafka's client takes an empty set for all partitions.
    assert await thread._fetch_records(None, active, timeout=1.0, max_records=5) == {}
    assert len(asked) == 1
