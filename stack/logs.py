"""Reading the children's logs."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 64 * 1024


def tail(path: Path, lines: int) -> str:
    """The last lines of a file, without reading all of it."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= lines:
            step = min(_CHUNK, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    return b"".join(data.splitlines(keepends=True)[-lines:]).decode("utf-8", errors="replace")


def follow(path: Path) -> Iterator[str]:
    """What is written from now on, as it comes, also after the log was put aside and begun anew. Never ends."""
    file = path.open("rb")
    file.seek(0, os.SEEK_END)
    try:
        while True:
            if data := file.read(_CHUNK):
                yield data.decode("utf-8", errors="replace")
                continue
            if _replaced(path, file.fileno()):
                file.close()
                file = path.open("rb")
            time.sleep(0.2)
    finally:
        file.close()


def _replaced(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino != os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
