"""A child under its guard, as the supervisor holds it."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from messaging.errors import Misconfigured
from stack import guard, locks
from stack.child import Child
from stack.layout import Layout

MAX_LOG_BYTES = 20 * 1024 * 1024


class Guarded:
    """One run of a child. `pid` is the child's own; the guard's is `guard_pid`."""

    def __init__(self, process: asyncio.subprocess.Process, leash: int) -> None:
        self._process = process
        self._leash: int | None = leash
        self.guard_pid = process.pid
        self.pid: int | None = None

    @classmethod
    async def start(cls, child: Child, environment: Mapping[str, str], log: Path, children_lock: Path) -> "Guarded":
        """Start the guard and wait until it has started the child."""
        leash_reader, leash_writer = os.pipe()
        report_reader, report_writer = os.pipe()
        lock = locks.take(children_lock, shared=True)
        output = _open_log(log)
        ours = [leash_reader, report_writer, output] + ([] if lock is None else [lock])
        try:
            process = await asyncio.create_subprocess_exec(
                *guard.argv(
                    child.command,
                    leash=leash_reader,
                    report=report_writer,
                    lock=lock,
                    user=None if child.user is None else (child.user.uid, child.user.gid),
                    stop_signal=child.stop_signal,
                    last_signal=child.last_signal,
                    grace=child.grace,
                ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                cwd="/",
                pass_fds=[leash_reader, report_writer] + ([] if lock is None else [lock]),
                start_new_session=True,
            )
        except BaseException:
            os.close(leash_writer)
            os.close(report_reader)
            raise
        finally:
            for descriptor in ours:
                os.close(descriptor)
        run = cls(process, leash_writer)
        try:
            run.pid = await _read_pid(report_reader)
        except BaseException:
            run.release()
            await process.wait()
            raise
        return run

    async def wait(self) -> int:
        """The child's exit code (128 + signal when one ended it), once it and what it started are gone."""
        code = await self._process.wait()
        if code < 0 and self.pid is not None:
            # The guard itself was killed: nobody else is left to end the child.
            self.kill()
        self.release()
        return code

    def release(self) -> None:
        """Let the leash go: the guard asks the child to end, and kills it after its grace. Safe to repeat."""
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None

    def kill(self) -> None:
        """End the child's process group at once."""
        if self.pid is not None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return


async def finish(child: Child, layout: Layout, log_name: str) -> None:
    """Run a short command to its end. Raises Misconfigured unless it exits with 0; what it said is in the log."""
    run = await Guarded.start(child, child.environment, layout.log(log_name), layout.children_lock)
    try:
        code = await run.wait()
    finally:
        run.release()
    if code != 0:
        raise Misconfigured(f"{child.name} ended with {code}: see `workbot logs {log_name}`.")


def _open_log(path: Path) -> int:
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


async def _read_pid(descriptor: int) -> int | None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        line = await reader.readline()
    finally:
        transport.close()
    return int(line) if line else None
