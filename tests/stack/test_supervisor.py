"""The supervisor with small children of its own: order, deaths, restarts, the end."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from messaging.errors import Misconfigured
from stack import probes, watch
from stack.backoff import Restart
from stack.child import Child, NotReady
from stack.layout import Layout
from stack.life import Life
from stack.status import Phase
from stack.supervisor import Supervisor
from tests.stack.processes import alive

# Becomes ready by making its flag file; says in it what it was given.
SERVER = """
import os, signal, sys, time
flag = sys.argv[1]
def end(*_):
    os.unlink(flag)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(flag, "w").write(os.environ.get("WORD", ""))
time.sleep(60)
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "stack")
    made.create()
    return made


def server(layout: Layout, name: str, *needs: str, code: str = SERVER, **options: object) -> Child:
    flag = layout.root / name

    async def prepare() -> None:
        flag.unlink(missing_ok=True)

    async def probe() -> None:
        if not flag.exists():
            raise NotReady("no flag yet")

    settings: dict[str, object] = {"prepare": prepare, "probe": probe, "grace": 5.0, **options}
    return Child(name, (sys.executable, "-c", code, str(flag)), needs=needs, **settings)  # type: ignore[arg-type]


@asynccontextmanager
async def running(layout: Layout, *children: Child) -> AsyncIterator[tuple[Supervisor, list[str]]]:
    """A supervisor that runs these, and the log of every phase entered."""
    seen: list[str] = []

    def note(life: Life) -> None:
        entry = f"{life.child.name} {life.phase}"
        if not seen or seen[-1] != entry:
            seen.append(entry)

    supervisor = Supervisor(layout, children, note, Restart(base=0.05, cap=0.2, healthy=60))
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, seen
    finally:
        supervisor.stop()
        await asyncio.wait_for(task, 20)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def ready(supervisor: Supervisor) -> None:
    await asyncio.wait_for(supervisor.until_ready(), 10)


async def test_children_start_after_what_they_need_and_stop_before_it(layout: Layout) -> None:
    step = Child("step", (sys.executable, "-c", "pass"), needs=("base",), once=True)
    async with running(layout, server(layout, "base"), step, server(layout, "top", "step")) as (supervisor, seen):
        await ready(supervisor)
        assert seen.index("base ready") < seen.index("step starting")
        assert seen.index("step done") < seen.index("top starting")
        pids = [life.pid for life in supervisor.lives.values() if life.pid]
        assert len(pids) == 2
    assert seen.index("top stopped") < seen.index("base stopping")
    assert not any(alive(pid) for pid in pids)


async def test_a_killed_child_comes_back(layout: Layout) -> None:
    async with running(layout, server(layout, "base")) as (supervisor, seen):
        await ready(supervisor)
        life = supervisor.lives["base"]
        first = life.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: life.restarts == 1)
        await ready(supervisor)
        assert life.pid not in (None, first)
        assert "base died" in seen


async def test_a_killed_child_comes_back_without_what_only_a_step_needed(layout: Layout) -> None:
    base, other = server(layout, "base"), server(layout, "other")
    step = Child("step", (sys.executable, "-c", "pass"), needs=("base", "other"), once=True)
    async with running(layout, base, other, step, server(layout, "top", "base", "step")) as (supervisor, seen):
        await ready(supervisor)
        await supervisor.halt("other")
        life = supervisor.lives["top"]
        first = life.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: life.phase is Phase.READY and life.pid not in (None, first))
        await supervisor.restart("other", {})
    assert seen.index("top stopped") < min(
        seen.index("base stopping"), len(seen) - seen[::-1].index("other stopping")
    )


async def test_a_child_whose_guard_is_killed_comes_back_alone(layout: Layout) -> None:
    async with running(layout, server(layout, "base")) as (supervisor, _):
        await ready(supervisor)
        life = supervisor.lives["base"]
        run = life.run
        assert run is not None
        assert run.pid is not None
        os.kill(run.guard_pid, signal.SIGKILL)
        await until(lambda: life.restarts == 1)
        await ready(supervisor)
        assert not alive(run.pid)


async def test_a_child_that_keeps_dying_is_tried_again_and_says_why(layout: Layout) -> None:
    async with running(layout, server(layout, "base", code="raise SystemExit(3)")) as (supervisor, _):
        life = supervisor.lives["base"]
        await until(lambda: life.restarts >= 2 and life.phase is Phase.DIED)
        assert "ended with 3; starts again in 0.2 s" in life.message
        assert not supervisor.ready


REFUSING = (
    """
import os, sys
if os.environ.get("WORD") != "good":
    print('{"event": "relay.leads"}')
    sys.exit("WORD must be good")
"""
    + SERVER
)


async def test_a_child_that_refuses_its_settings_stays_down_until_it_is_given_others(layout: Layout) -> None:
    refusing = server(layout, "base", code=REFUSING, refusal=1)
    async with running(layout, refusing, server(layout, "other")) as (supervisor, seen):
        life = supervisor.lives["base"]
        await until(lambda: life.phase is Phase.REFUSED and supervisor.lives["other"].phase is Phase.READY)
        assert life.message.startswith("ended with 1: WORD must be good; correct that")
        await asyncio.sleep(1)
        assert (life.starts, life.phase) == (1, Phase.REFUSED)
        with pytest.raises(Misconfigured, match="base ended with 1: WORD must be good"):
            await supervisor.restart("base", {"WORD": "bad"})
        await supervisor.restart("base", {"WORD": "good"})
        assert supervisor.ready
        assert life.restarts == 0, "those were asked for"
        assert "base died" not in seen


async def test_what_was_ready_with_its_settings_before_is_tried_again_whatever_its_code(layout: Layout) -> None:
    # Ready the first time; from then on every start ends with the code of a refusal.
    mark = layout.root / "started"
    code = f"import os, sys\nif os.path.exists({str(mark)!r}):\n    sys.exit(78)\nopen({str(mark)!r}, 'w')\n" + SERVER
    async with running(layout, server(layout, "base", code=code, refusal=78)) as (supervisor, seen):
        await ready(supervisor)
        life = supervisor.lives["base"]
        assert life.pid is not None
        os.kill(life.pid, signal.SIGKILL)
        await until(lambda: life.restarts >= 3)
        assert "base refused" not in seen
        mark.unlink()
        await ready(supervisor)


async def test_a_restart_waits_until_what_the_child_needs_is_ready(layout: Layout) -> None:
    async with running(layout, server(layout, "base"), server(layout, "top", "base")) as (supervisor, seen):
        await ready(supervisor)
        base, top = supervisor.lives["base"], supervisor.lives["top"]
        assert base.pid is not None
        assert top.pid is not None
        os.kill(base.pid, signal.SIGKILL)
        await until(lambda: base.phase is not Phase.READY)
        os.kill(top.pid, signal.SIGKILL)
        await until(lambda: top.restarts == 1 and supervisor.ready)
        back = len(seen) - 1 - seen[::-1].index("base ready")
        assert back < len(seen) - 1 - seen[::-1].index("top starting")


async def test_a_child_that_is_never_ready_is_ended_and_counted_as_dead(layout: Layout) -> None:
    never = server(layout, "base", code="import time; time.sleep(60)", ready_within=0.3)
    async with running(layout, never) as (supervisor, _):
        life = supervisor.lives["base"]
        await until(lambda: life.restarts == 1)
        assert life.failures >= 1


async def test_a_frozen_child_is_killed_by_its_guard_and_comes_back(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "READY_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(watch, "PROBE_TIMEOUT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def answers() -> None:
        await probes.expect_ok(f"http://127.0.0.1:{port}/")

    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(layout.run), str(port))
    child = Child("base", command, probe=answers, alive=answers, patience=3.0, grace=0.5)
    async with running(layout, child) as (supervisor, seen):
        await ready(supervisor)
        life = supervisor.lives["base"]
        first = life.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await until(lambda: life.phase is Phase.SILENT)
        os.kill(first, signal.SIGCONT)
        await ready(supervisor)
        assert life.pid == first, "a short freeze is no reason to restart"
        os.kill(first, signal.SIGSTOP)
        await until(lambda: life.restarts == 1)
        await ready(supervisor)
        assert not alive(first)
        assert seen[-4:] == ["base died", "base waiting", "base starting", "base ready"]


async def test_a_preparation_that_fails_is_tried_again(layout: Layout) -> None:
    tries = 0

    async def prepare() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Misconfigured("the disk is full")

    async with running(layout, server(layout, "base", prepare=prepare)) as (supervisor, seen):
        await ready(supervisor)
        assert tries == 2
        assert seen.index("base died") < seen.index("base ready")


async def test_restart_gives_the_child_other_variables_until_the_next_restart(layout: Layout) -> None:
    def word() -> str:
        return (layout.root / "base").read_text("ascii")

    def settled(text: str) -> Callable[[], bool]:
        return lambda: supervisor.ready and (layout.root / "base").exists() and word() == text

    async with running(layout, server(layout, "base", environment={"WORD": "own"})) as (supervisor, seen):
        await ready(supervisor)
        await until(settled("own"))
        await supervisor.restart("base", {"WORD": "other"})
        await until(settled("other"))
        assert supervisor.lives["base"].restarts == 0, "that one was asked for"
        pid = supervisor.lives["base"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: supervisor.lives["base"].restarts == 1 and supervisor.ready)
        await until(settled("other"))
        await supervisor.restart("base", {})
        await until(settled("own"))
        assert supervisor.lives["base"].restarts == 1
        assert "base died" in seen


async def test_everything_ends_when_it_is_stopped_in_the_middle_of_a_start(layout: Layout) -> None:
    slow = asyncio.Event()

    async def prepare() -> None:
        await slow.wait()

    async with running(layout, server(layout, "base", prepare=prepare), server(layout, "other")) as (supervisor, _):
        await until(lambda: supervisor.lives["other"].phase is Phase.READY)
        pid = supervisor.lives["other"].pid
    assert pid is not None
    assert not alive(pid)


def test_a_circle_is_refused(layout: Layout) -> None:
    with pytest.raises(Misconfigured, match="circle"):
        Supervisor(layout, [server(layout, "a", "b"), server(layout, "b", "a")])


async def test_a_halted_child_stays_down_until_it_is_started(layout: Layout) -> None:
    async with running(layout, server(layout, "base"), server(layout, "top", "base")) as (supervisor, _):
        await ready(supervisor)
        life = supervisor.lives["top"]
        first = life.pid
        await supervisor.halt("top")
        assert (life.phase, life.pid, supervisor.ready) == (Phase.STOPPED, None, False)
        assert first is not None
        assert not alive(first)
        await supervisor.halt("top")  # twice is once
        await asyncio.sleep(0.5)
        assert life.phase is Phase.STOPPED
        await supervisor.restart("top", {})
        assert supervisor.ready
        assert life.pid not in (None, first)
        assert life.restarts == 0, "nobody counts what was asked for"


async def test_a_child_that_dies_again_and_again_can_be_halted(layout: Layout) -> None:
    async with running(layout, server(layout, "bad", code="import sys; sys.exit(3)")) as (supervisor, seen):
        await until(lambda: "bad died" in seen)
        await supervisor.halt("bad")
        life = supervisor.lives["bad"]
        starts = life.starts
        await asyncio.sleep(0.6)
        assert (life.phase, life.starts) == (Phase.STOPPED, starts)


async def test_a_child_that_waits_for_what_it_needs_can_be_halted(layout: Layout) -> None:
    async with running(layout, server(layout, "base"), server(layout, "top", "base")) as (supervisor, _):
        await ready(supervisor)
        top, base = supervisor.lives["top"], supervisor.lives["base"]
        await supervisor.halt("base")
        assert top.pid is not None
        os.kill(top.pid, signal.SIGKILL)
        await until(lambda: top.phase is Phase.WAITING)
        await supervisor.halt("top")
        await supervisor.restart("base", {})
        await until(lambda: base.phase is Phase.READY)
        await asyncio.sleep(0.5)
        assert (top.phase, top.pid) == (Phase.STOPPED, None)
