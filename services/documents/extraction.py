"""A pool of warm processes for taking text out of files: slow, and done by native code that may hang or crash.

A file that takes longer than the deadline, or takes two processes down, is given up for good: it would only do so
again. It costs those processes and nobody else's work; others replace them. All of them end with this one, however
it ends.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from typing import Literal

import structlog

from messaging.errors import NotRetryable, Retryable
from messaging.settings import inherited_environment

START_SECONDS = 30.0
_RESTART_SECONDS = 1.0
_MAX_ANSWER_BYTES = 16 * 2**20
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, LookupError, TypeError)
"""How it shows that a process died or answered nonsense."""

Task = Literal["pdf", "html"]

log = structlog.get_logger(__name__)


class Extraction:
    """The pool. `start` it before the first file and `close` it at the end."""

    def __init__(self, processes: int, deadline_seconds: float) -> None:
        self._size = processes
        self._deadline = deadline_seconds
        self._idle: asyncio.Queue[Process] = asyncio.Queue()
        self._all: set[Process] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start every process and wait until each is warm."""
        for process in await asyncio.gather(*(self._launch() for _ in range(self._size))):
            self._idle.put_nowait(process)

    async def text(self, task: Task, data: bytes, encoding: str | None = None) -> str:
        """The text of a file. Raises NotRetryable when the file is at fault, Retryable when the pool is closed.

        The deadline runs from when a process takes the file up, not while it waits for one. A process may die for
        reasons of its own, so the file is tried in another one before it is blamed.
        """
        try:
            return await self._read(task, data, encoding)
        except _BROKEN as error:
            if self._closed:
                raise Retryable("The processes that read files have ended.") from error
            log.warning("extraction.process_died", error=repr(error))
        try:
            return await self._read(task, data, encoding)
        except _BROKEN as error:
            if self._closed:
                raise Retryable("The processes that read files have ended.") from error
            raise NotRetryable("The file ends the program that reads it.", "too_complex") from error

    async def _read(self, task: Task, data: bytes, encoding: str | None) -> str:
        process = await self._take()
        answered = False
        try:
            async with asyncio.timeout(self._deadline):
                answer = await _ask(process, task, data, encoding)
            answered = True
        except TimeoutError:
            raise NotRetryable(
                f"Reading the file took more than {self._deadline:g} seconds.", "too_complex"
            ) from None
        finally:
            if answered:
                self._idle.put_nowait(process)
            else:
                self._replace(process)
        if isinstance(answer, NotRetryable):
            raise answer
        return answer

    def pids(self) -> list[int]:
        """The process ids, for health checks and audits."""
        return [process.pid for process in self._all if process.returncode is None]

    async def close(self) -> None:
        """End every process at once. Files under way fail as Retryable."""
        self._closed = True
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for process in list(self._all):
            await self._end(process)

    async def _take(self) -> Process:
        while True:
            process = await self._idle.get()
            if process.returncode is None:
                return process
            self._replace(process)

    async def _launch(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "services.documents.extractor",
            str(os.getpid()),
            stdin=PIPE,
            stdout=PIPE,
            env=inherited_environment(),
        )
        self._all.add(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await _answer(process)
        except BaseException:
            await self._end(process)
            raise
        return process

    def _replace(self, process: Process) -> None:
        task = asyncio.create_task(self._relaunch(process))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _relaunch(self, process: Process) -> None:
        await self._end(process)
        while not self._closed:
            log.warning("extraction.process_replaced", pid=process.pid, exit=process.returncode)
            try:
                self._idle.put_nowait(await self._launch())
            except (*_BROKEN, TimeoutError) as error:
                log.error("extraction.process_did_not_start", error=repr(error))
                await asyncio.sleep(_RESTART_SECONDS)
            else:
                return

    async def _end(self, process: Process) -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._all.discard(process)


async def _ask(process: Process, task: Task, data: bytes, encoding: str | None) -> str | NotRetryable:
    assert process.stdin is not None
    request = {"task": task, "size": len(data), "encoding": encoding}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.write(data)
    await process.stdin.drain()
    return await _answer(process)


async def _answer(process: Process) -> str | NotRetryable:
    assert process.stdout is not None
    head = json.loads(await process.stdout.readuntil(b"\n"))
    if not head["ok"]:
        return NotRetryable(str(head["message"]), str(head["reason"]))
    size = int(head["size"])
    if size > _MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {size} bytes")
    return (await process.stdout.readexactly(size)).decode("utf-8")
