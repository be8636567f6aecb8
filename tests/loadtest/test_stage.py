"""Pointing the service elsewhere and back again, against a stand-in for the stack's control."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from loadtest import faults, stage
from loadtest.__main__ import app
from loadtest.provider import ProviderProcess
from loadtest.scenario import Scenario
from stack import control
from stack.status import ChildStatus, Phase, Status


class Control:
    """Remembers what was restarted with which variables; `failing` names one that cannot be."""

    def __init__(self) -> None:
        self.now: dict[str, Mapping[str, str] | None] = {}
        self.calls: list[str] = []
        self.failing = ""
        self.slow = 0.05
        self._lock = threading.Lock()

    def restart(self, name: str, env: Mapping[str, str] | None, data_dir: Path) -> None:
        time.sleep(self.slow)
        with self._lock:
            self.calls.append(name)
            if name == self.failing and env is not None:
                raise control.ControlFailed("it does not start")
            self.now[name] = env


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Control:
    made = Control()
    monkeypatch.setattr(control, "restart", made.restart)
    monkeypatch.setattr(control, "endpoints", lambda data_dir: SimpleNamespace())
    return made


@pytest.fixture
def provider() -> ProviderProcess:
    made = ProviderProcess(faults.Terms())
    made.address = "127.0.0.1:8099"
    return made


def test_the_service_gets_settings_anybody_could_give_it(provider: ProviderProcess) -> None:
    given = stage.settings(replace(Scenario(), lend=False, per_sender=3, total=7), provider)
    assert given["documents-api"] == {"WORKBOT_FETCH_ALLOW": "127.0.0.1:8099"}
    assert given["documents-worker"] == {
        "WORKBOT_FETCH_ALLOW": "127.0.0.1:8099",
        "WORKBOT_MODEL_URL": "http://127.0.0.1:8099/v1",
        "WORKBOT_READER_PER_KEY": "3",
        "WORKBOT_READER_TOTAL": "7",
        "WORKBOT_READER_LEND": "false",
    }


def test_the_documents_service_understands_every_one_of_them(
    provider: ProviderProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from messaging.settings import load
    from services.documents.settings import DocumentsSettings

    monkeypatch.setenv("WORKBOT_DATABASE_URL", "postgresql:///x")
    monkeypatch.setenv("WORKBOT_STORAGE_DIR", "storage")
    scenario = replace(Scenario(), lend=False, per_sender=3, total=7, timeout_rate=0.1)
    for name, value in stage.settings(scenario, provider)["documents-worker"].items():
        monkeypatch.setenv(name, value)
    settings = load(DocumentsSettings)
    assert settings.model_url == provider.model_url
    assert settings.fetch_allow == {"127.0.0.1:8099"}
    assert (settings.reader_per_key, settings.reader_total, settings.reader_lend) == (3, 7, False)
    assert settings.model_timeout_seconds == 4.0


async def test_afterwards_the_service_is_as_it_was(stand_in: Control, provider: ProviderProcess) -> None:
    said: list[str] = []
    async with stage.Stage(Path()).pointed_at(Scenario(), provider, said.append):
        assert stand_in.now["documents-worker"] is not None
        assert stand_in.now["documents-api"] is not None
    assert stand_in.now == {"documents-api": None, "documents-worker": None}
    assert len(said) == 2


async def test_also_after_a_failure(stand_in: Control, provider: ProviderProcess) -> None:
    with pytest.raises(ZeroDivisionError):
        async with stage.Stage(Path()).pointed_at(Scenario(), provider, lambda text: None):
            raise ZeroDivisionError
    assert stand_in.now == {"documents-api": None, "documents-worker": None}


async def test_also_when_it_could_not_be_pointed_elsewhere(stand_in: Control, provider: ProviderProcess) -> None:
    stand_in.failing = "documents-worker"
    with pytest.raises(control.ControlFailed):
        async with stage.Stage(Path()).pointed_at(Scenario(), provider, lambda text: None):
            pytest.fail("the block must not run")
    assert stand_in.now == {"documents-api": None, "documents-worker": None}


async def test_also_when_it_is_broken_off(stand_in: Control, provider: ProviderProcess) -> None:
    reached = asyncio.Event()

    async def wait_inside() -> None:
        async with stage.Stage(Path()).pointed_at(Scenario(), provider, lambda text: None):
            reached.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(wait_inside())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stand_in.now == {"documents-api": None, "documents-worker": None}


async def test_also_when_it_is_broken_off_while_being_pointed_elsewhere(
    stand_in: Control, provider: ProviderProcess
) -> None:
    async def point() -> None:
        async with stage.Stage(Path()).pointed_at(Scenario(), provider, lambda text: None):
            pytest.fail("the block must not run")

    task = asyncio.create_task(point())
    await asyncio.sleep(0.005)
    stand_in.slow = 0.0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)
    assert stand_in.now == {"documents-api": None, "documents-worker": None}


async def test_broken_off_while_it_cannot_be_pointed_elsewhere_it_leaves_no_error_behind(
    stand_in: Control, provider: ProviderProcess
) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    stand_in.failing = "documents-worker"

    async def point() -> None:
        async with stage.Stage(Path()).pointed_at(Scenario(), provider, lambda text: None):
            pytest.fail("the block must not run")

    task = asyncio.create_task(point())
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()
    await asyncio.sleep(0)
    assert unheard == []


def ill(name: str, phase: Phase, message: str) -> ChildStatus:
    return ChildStatus(name, phase, "", message, 0.0, 0, None, None, None)


@pytest.mark.parametrize(
    ("child", "refused"),
    [
        (ill("documents-worker", Phase.DIED, "ended with 1"), True),
        (ill("kafka", Phase.SILENT, ""), True),
        (ill("gateway-worker", Phase.DIED, "ended with 1"), False),
    ],
)
def test_a_part_that_is_not_ready_refuses_the_run(
    stand_in: Control, monkeypatch: pytest.MonkeyPatch, child: ChildStatus, refused: bool
) -> None:
    now = Status(1, 0.0, ready=False, stopping=False, memory_bytes=0, children=(child,))
    monkeypatch.setattr(control, "status", lambda data_dir: now)
    with pytest.raises(control.PartsNotReady, match=f"workbot logs {child.name}") if refused else nullcontext():
        stage.Stage(Path()).check()
    assert stand_in.calls == []


def test_without_a_stack_the_command_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "--data-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"`workbot --data-dir {tmp_path} up`" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--counts", "3,x"), "whole numbers"),
        (("--counts", "3,1", "--senders", "a"), "one count per sender"),
        (("--mean", "0"), "above 0"),
        (("--error-rate", "5"), "--error-rate is a share of all calls, from 0 to below 1, not 5"),
        (("--throttle-rate", "-1"), "--throttle-rate is a share"),
        (("--timeout-rate", "nan"), "--timeout-rate is a share"),
        (("--error-rate", "0.6", "--timeout-rate", "0.6"), "below 1 together, not 1.2"),
        (("--per-sender", "11"), "--per-sender, slots per sender, must be between 1 and the --total of 10"),
        (("--broken", "301"), "--broken must be"),
        (("--counts", "0,1"), "--counts: every sender"),
        (("--counts", "²"), "whole numbers"),
        (("--senders", "a,a,b,c,d"), "--senders: every sender needs a name"),
        (("--mean", "inf"), "--mean, the mean latency"),
    ],
)
def test_options_that_make_no_sense_are_explained(tmp_path: Path, options: tuple[str, ...], fault: str) -> None:
    ended = CliRunner().invoke(app, ["--data-dir", str(tmp_path), *options])
    assert ended.exit_code == 2
    assert fault in " ".join(ended.stderr.split())
    assert isinstance(ended.exception, SystemExit)
