"""Signals to the command reach the load test it runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.processes import alive, wait

# Stands in for the load test: counts what reaches it, ends a moment after the first.
LOADTEST = """
import os, signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.append(number))
open("pid.new", "w").write(str(os.getpid()))
os.rename("pid.new", "pid")
while not got:
    time.sleep(0.01)
time.sleep(0.3)
open("got", "w").write(",".join(map(str, got)))
sys.exit(7)
"""

PASSING = "import sys; from stack import passing; sys.exit(passing.run([sys.executable, '-m', 'loadtest']))"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "loadtest.py").write_text(LOADTEST, "utf-8")
    return tmp_path


def started(place: Path, *command: str, **options: bool) -> "tuple[subprocess.Popen[bytes], int]":
    process = subprocess.Popen(command, cwd=place, **options)  # type: ignore[call-overload]
    wait((place / "pid").exists)
    return process, int((place / "pid").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_demo_reaches_its_load_test(place: Path, number: signal.Signals) -> None:
    process, child = started(place, sys.executable, "-c", PASSING)
    assert child != process.pid
    process.send_signal(number)
    assert process.wait(30) == 7
    assert (place / "got").read_text() == str(int(number))


def test_ctrl_c_reaches_it_once(place: Path) -> None:
    process, _ = started(place, sys.executable, "-c", PASSING, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 7
    assert (place / "got").read_text() == str(int(signal.SIGINT))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part in it is Linux's")
def test_it_does_not_outlive_a_killed_command(place: Path) -> None:
    process, child = started(place, sys.executable, "-c", PASSING)
    process.kill()
    process.wait(30)
    wait((place / "got").exists)
    wait(lambda: not alive(child))


def test_load_becomes_the_load_test(place: Path) -> None:
    workbot = str(Path(sys.executable).with_name("workbot"))
    process, child = started(place, workbot, "--data-dir", str(place / "stack"), "load")
    assert child == process.pid
    process.terminate()
    assert process.wait(30) == 7
