"""File locks that the kernel gives back when their holder ends, however it ended."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def take(path: Path, *, shared: bool = False) -> int | None:
    """A descriptor that holds the lock until it is closed, or None when someone else holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_held(path: Path) -> bool:
    """Whether some process holds the lock now."""
    if not path.exists():
        return False
    descriptor = take(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def wait_for(path: Path, seconds: float, *, shared: bool = False) -> int | None:
    """Like `take`, trying for a while. Blocks the calling thread."""
    deadline = time.monotonic() + seconds
    while (descriptor := take(path, shared=shared)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return descriptor


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock for a block, waiting as long as it takes; `waiting` is called once if someone else has it."""
    descriptor = take(path)
    if descriptor is None:
        waiting()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)
