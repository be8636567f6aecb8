"""`python -m stack.guard`: the process between a parent and a child that must not outlive it.

The parent holds the other end of a pipe. When it closes it, or ends in any way, the guard reads end of file and ends
the child: first a polite signal, after the grace a kill of the whole process group, then of everything the child left
behind. The guard exits as the child did. Only the standard library is used here: one guard runs per child.
"""

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

LEFTOVERS_SECONDS = 3.0
"""How long processes that the child left behind may take to end by themselves."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def argv(
    command: Sequence[str],
    *,
    leash: int,
    report: int | None = None,
    lock: int | None = None,
    user: tuple[int, int] | None = None,
    stop_signal: int = signal.SIGTERM,
    last_signal: int = signal.SIGKILL,
    grace: float = 10.0,
) -> list[str]:
    """The command that runs `command` under a guard.

    leash   descriptor of the pipe's reading end     report  descriptor that is told the child's pid
    lock    descriptor of a file lock that the guard and the child share
    """
    options = [f"--leash={leash}", f"--stop-signal={int(stop_signal)}", f"--last-signal={int(last_signal)}"]
    options += [f"--grace={grace}", f"--parent={os.getpid()}"]
    if report is not None:
        options.append(f"--report={report}")
    if lock is not None:
        options.append(f"--lock={lock}")
    if user is not None:
        options.append(f"--user={user[0]}:{user[1]}")
    return [sys.executable, "-P", "-m", "stack.guard", *options, "--", *command]


def die_with_parent(number: int) -> None:
    """Have the kernel send us this signal when the thread that started us ends: the second belt, Linux only."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Guard:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._stopping = False
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)

    def run(self) -> int:
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the child.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self._on_stop)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        die_with_parent(signal.SIGTERM)
        if os.getppid() != self._options.parent:
            return 0
        try:
            child = self._start()
        except OSError as error:
            sys.stderr.write(f"{self._options.command[0]}: {error.strerror}\n")
            return 127
        if self._options.report is not None:
            # Nobody reads any more when the parent has just let go: the leash tells it next.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._options.report, b"%d\n" % child.pid)
            os.close(self._options.report)
        code = self._watch(child)
        _signal_group(child.pid, signal.SIGKILL)
        _reap_leftovers()
        return code if code >= 0 else 128 - code

    def _start(self) -> "subprocess.Popen[bytes]":
        uid, gid = self._options.user or (None, None)
        last_signal = self._options.last_signal
        return subprocess.Popen(  # noqa: S603
            self._options.command,
            start_new_session=True,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            pass_fds=() if self._options.lock is None else (self._options.lock,),
            preexec_fn=lambda: die_with_parent(last_signal),
        )

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _watch(self, child: "subprocess.Popen[bytes]") -> int:
        deadline: float | None = None
        while True:
            if (code := child.poll()) is not None:
                return code
            if self._stopping and deadline is None:
                child.send_signal(self._options.stop_signal)
                deadline = time.monotonic() + self._options.grace
            if deadline is not None and time.monotonic() >= deadline:
                _signal_group(child.pid, signal.SIGKILL)
            watched = [self._wake_reader] if self._stopping else [self._wake_reader, self._options.leash]
            timeout = None if deadline is None else max(0.1, deadline - time.monotonic())
            readable, _, _ = select.select(watched, [], [], timeout)
            if self._wake_reader in readable:
                os.read(self._wake_reader, 512)
            if self._options.leash in readable and not os.read(self._options.leash, 512):
                self._stopping = True


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _reap_leftovers() -> None:
    """Wait for orphans that came to us, and kill those that stay."""
    deadline = time.monotonic() + LEFTOVERS_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if time.monotonic() >= deadline:
            for orphan in _children():
                os.kill(orphan, signal.SIGKILL)
        time.sleep(0.02)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []


def _ids(text: str) -> tuple[int, int]:
    uid, _, gid = text.partition(":")
    return int(uid), int(gid)


def main() -> int:
    """Run the command after `--` until it ends or the leash is let go; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m stack.guard", description=__doc__)
    parser.add_argument("--leash", type=int, required=True)
    parser.add_argument("--report", type=int)
    parser.add_argument("--lock", type=int)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--stop-signal", type=int, required=True)
    parser.add_argument("--last-signal", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--user", type=_ids)
    parser.add_argument("command", nargs="+")
    return _Guard(parser.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
