"""What a run looks at before it touches the stack."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from loadtest.run import LoadTest, NotReading
from loadtest.scenario import Scenario
from stack.control import PartsNotReady


class Untouched:
    """A stage that may only be looked at."""

    def __init__(self, folder: Path, fault: Exception | None = None) -> None:
        secret = folder / "secret"
        secret.write_text("x" * 43, "ascii")
        self.endpoints = SimpleNamespace(documents_api="http://127.0.0.1:9", token_secret_file=secret)
        self.fault = fault

    def check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def pointed_at(self, *_arguments: object) -> None:
        pytest.fail("the services must not be restarted")


async def perform(stage: Any, out: Path, api: str | None = None) -> None:
    await LoadTest(Scenario(), stage, Console(file=io.StringIO()), api).perform(out)


@pytest.mark.parametrize("api", ["http://127.0.0.1:9", "nowhere", "http://127.0.0.1:x"])
async def test_an_address_where_nobody_answers_is_named(tmp_path: Path, api: str) -> None:
    with pytest.raises(NotReading, match=f"^{api} does not answer: "):
        await perform(Untouched(tmp_path), tmp_path, api)


async def test_a_part_that_is_not_ready_comes_first(tmp_path: Path) -> None:
    with pytest.raises(PartsNotReady, match="the worker is ill"):
        await perform(Untouched(tmp_path, PartsNotReady("the worker is ill")), tmp_path)


@pytest.mark.parametrize("api", ["https://127.0.0.1:9", "HTTPS://example.com"])
async def test_an_address_that_the_probe_cannot_ask_is_refused_before_anything_is_touched(
    tmp_path: Path, api: str
) -> None:
    with pytest.raises(NotReading, match=f"^{api} cannot be timed: the probe speaks plain HTTP"):
        await perform(Untouched(tmp_path), tmp_path, api)
