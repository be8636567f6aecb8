"""What is away when a process starts is waited for, told of, and nothing else is."""

import asyncio

import psycopg
import pytest
from psycopg_pool import PoolTimeout
from structlog.testing import capture_logs

from messaging.errors import Misconfigured, Outage
from messaging.patience import waited_out


class Server:
    """Fails with these errors in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    async def ask(self) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "here"


async def test_an_outage_is_waited_out_with_longer_and_longer_pauses() -> None:
    server = Server(
        Outage("Kafka does not answer.", "kafka"), PoolTimeout("no connection"), Outage("Nor now.", "kafka")
    )
    with capture_logs() as lines:
        assert await waited_out("look", server.ask) == "here"
    said = [(line["event"], line.get("resource"), line.get("error"), line.get("seconds")) for line in lines]
    assert said == [
        ("start.waits", "kafka", "Kafka does not answer", 0.25),
        ("start.waits", "database", "no connection", 0.25),
        ("start.waits", "kafka", "Nor now", 0.5),
        ("start.goes_on", None, None, None),
    ]


async def test_what_is_there_is_not_told_of() -> None:
    with capture_logs() as lines:
        assert await waited_out("look", Server().ask) == "here"
    assert lines == []


@pytest.mark.parametrize("error", [Misconfigured("no"), psycopg.errors.UndefinedTable("no"), RuntimeError("no")])
async def test_any_other_error_goes_on(error: Exception) -> None:
    with pytest.raises(type(error)):
        await waited_out("look", Server(error).ask)


async def test_it_ends_when_it_is_cancelled() -> None:
    async def away() -> None:
        raise Outage("Away.", "kafka")

    waiting = asyncio.ensure_future(waited_out("look", away))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
