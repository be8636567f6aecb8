"""Running a command in the foreground: whatever is sent to us reaches it, once, and our exit code is its own."""

import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

from stack import guard

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: Sequence[str]) -> int:
    """Run it to its end; returns its exit code, 128 + signal when one ended it.

    It is in a process group of its own: Ctrl-C would reach it twice otherwise, and a second one breaks off the
    tidying up after the first. Should this process be killed, it is asked to end.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=lambda: guard.die_with_parent(signal.SIGTERM),
        )
        for number in early:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
