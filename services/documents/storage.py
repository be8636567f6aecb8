"""Where the documents' bytes are kept: on the local disk, behind an interface that an object store can offer too."""

import asyncio
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from messaging.errors import NotRetryable, Outage

_KEY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
T = TypeVar("T")

_THREADS = 8
_WRITE_BYTES = 256 * 1024
"""A file is handed to the disk in pieces of this size; a smaller one in a single go."""


class Incoming(Protocol):
    """A file on its way in. It does not exist for anybody until `keep`, and leaves nothing behind after `discard`."""

    async def write(self, piece: bytes) -> None:
        """Add to its end."""
        ...

    async def keep(self) -> None:
        """Make it durable and visible under its key, at once and as a whole."""
        ...

    async def discard(self) -> None:
        """Remove whatever there is of it, kept or not. May be called again."""
        ...


class Storage(Protocol):
    """Files by key; a key is a lower-case UUID. Every call raises Outage when the storage is away."""

    def receive(self, key: str) -> Incoming:
        """A new file."""
        ...

    async def load(self, key: str) -> bytes:
        """A kept file. Raises NotRetryable when there is none."""
        ...

    async def remove(self, key: str) -> None:
        """Remove a kept file, if there is one. Raises OSError when it cannot go."""
        ...

    async def older_than(self, seconds: float) -> list[str]:
        """Keys of the files kept longer ago than that; what never got kept and is as old is removed."""
        ...


class LocalStorage:
    """Files below one folder. All disk work happens in threads of its own, so that the event loop never waits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / "incoming"
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="storage")

    async def open(self) -> None:
        """Make the folders. Raises OSError when that is not possible."""
        await self.run(self._make_folders)

    def close(self) -> None:
        """Wait for work under way."""
        self._threads.shutdown()

    def receive(self, key: str) -> Incoming:
        return _LocalFile(self, self._incoming / _checked(key), self._path(key))

    async def load(self, key: str) -> bytes:
        path = self._path(key)
        try:
            return await self.run(path.read_bytes)
        except FileNotFoundError:
            raise NotRetryable("The document's file is no longer in storage.", "file_missing") from None
        except OSError as error:
            raise _outage(error) from error

    async def remove(self, key: str) -> None:
        path = self._path(key)
        await self.run(lambda: path.unlink(missing_ok=True))

    async def older_than(self, seconds: float) -> list[str]:
        return await self.run(self._older_than, time.time() - seconds)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Run blocking disk work in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def _make_folders(self) -> None:
        for folder in (self._folder, self._incoming, *(self._folder / f"{number:02x}" for number in range(256))):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _older_than(self, moment: float) -> list[str]:
        for path in self._incoming.iterdir():
            if _kept_before(path, moment):
                path.unlink(missing_ok=True)
        return [
            path.name
            for folder in self._folder.iterdir()
            if folder != self._incoming
            for path in folder.iterdir()
            if _KEY.fullmatch(path.name) and _kept_before(path, moment)
        ]

    def _path(self, key: str) -> Path:
        # The last digits of a UUID version 7 are random, the first ones are the time.
        return self._folder / _checked(key)[-2:] / key


class _LocalFile:
    """A temporary file, renamed when it is whole."""

    def __init__(self, storage: LocalStorage, temporary: Path, path: Path) -> None:
        self._storage = storage
        self._temporary = temporary
        self._path = path
        self._pieces: list[bytes] = []
        self._held = 0
        self._file: BinaryIO | None = None
        self._work: asyncio.Future[None] | None = None

    async def write(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held >= _WRITE_BYTES:
            await self._on_disk(self._flush)

    async def keep(self) -> None:
        await self._on_disk(self._keep)

    async def discard(self) -> None:
        self._pieces.clear()
        if self._work is not None:
            await self._on_disk(self._discard)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        # A request that is cancelled leaves its thread at work; what comes next on this file waits for that.
        if self._work is not None:
            await asyncio.wait({self._work})
        self._work = asyncio.ensure_future(self._storage.run(work))
        try:
            await asyncio.shield(self._work)
        except OSError as error:
            raise _outage(error) from error

    def _flush(self) -> None:
        if self._file is None:
            self._file = open(self._temporary, "xb")  # noqa: SIM115 - stays open between pieces
        for piece in self._pieces:
            self._file.write(piece)
        self._pieces.clear()
        self._held = 0

    def _keep(self) -> None:
        self._flush()
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _discard(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._temporary.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)


def _kept_before(path: Path, moment: float) -> bool:
    try:
        return path.stat().st_mtime < moment
    except FileNotFoundError:
        return False


def _checked(key: str) -> str:
    """The key itself. Raises NotRetryable for anything but a UUID: keys come back to us in messages."""
    if not _KEY.fullmatch(key):
        raise NotRetryable("The document's storage key is not one of ours.", "bad_storage_key")
    return key


def _outage(error: OSError) -> Outage:
    return Outage(f"The storage is not usable: {error.strerror or error}", "storage")
