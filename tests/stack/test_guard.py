"""The guard ends its child with its parent, whatever ended the parent."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack import guard
from tests.stack.processes import alive, wait

# Writes its pid and a grandchild's, then waits. With "deaf" it shrugs off SIGTERM; the grandchild always does.
CHILD = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=sys.argv[3] == "apart")
path = sys.argv[1]
open(path + ".new", "w").write(f"{os.getpid()} {grandchild.pid}")
os.rename(path + ".new", path)
time.sleep(60)
"""


class Held:
    """A guard, its child and its grandchild, and the end of the leash that holds them."""

    def __init__(self, folder: Path, manner: str = "polite", grandchild: str = "near", grace: float = 5.0) -> None:
        reader, self.leash = os.pipe()
        told = folder / "pids"
        command = [sys.executable, "-c", CHILD, str(told), manner, grandchild]
        self.guard = subprocess.Popen(guard.argv(command, leash=reader, grace=grace), pass_fds=[reader])
        os.close(reader)
        wait(told.exists)
        self.child, self.grandchild = map(int, told.read_text("ascii").split())

    def let_go(self) -> None:
        os.close(self.leash)

    def gone(self) -> bool:
        return not alive(self.child) and not alive(self.grandchild)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., Held]]:
    made: list[Held] = []

    def make(**options: object) -> Held:
        made.append(Held(tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for held in made:
        for pid in (held.child, held.grandchild):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        held.guard.kill()
        held.guard.wait()


def test_letting_go_ends_the_child_and_what_it_started(hold: Callable[..., Held]) -> None:
    held = hold()
    held.let_go()
    assert held.guard.wait(5) == 128 + signal.SIGTERM
    assert held.gone()


def test_a_deaf_child_is_killed_after_its_grace(hold: Callable[..., Held]) -> None:
    held = hold(manner="deaf", grace=0.5)
    began = time.monotonic()
    held.let_go()
    assert held.guard.wait(5) == 128 + signal.SIGKILL
    assert time.monotonic() - began >= 0.5
    assert held.gone()


def test_a_grandchild_in_a_session_of_its_own_does_not_stay(hold: Callable[..., Held]) -> None:
    held = hold(grandchild="apart")
    held.let_go()
    held.guard.wait(guard.LEFTOVERS_SECONDS + 5)
    assert held.gone()


def test_a_killed_guard_takes_its_child_along(hold: Callable[..., Held]) -> None:
    held = hold()
    held.guard.kill()
    wait(lambda: not alive(held.child))


def test_the_guard_ends_as_its_child_did(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    for code, expected in (("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)):
        command = guard.argv([sys.executable, "-c", code], leash=reader)
        assert subprocess.run(command, pass_fds=[reader], check=False).returncode == expected
    command = guard.argv([str(tmp_path / "missing")], leash=reader)
    missing = subprocess.run(command, pass_fds=[reader], check=False, capture_output=True)
    assert missing.returncode == 127
    assert b"missing: No such file" in missing.stderr
    os.close(reader)
    os.close(writer)
