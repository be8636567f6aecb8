"""Looking at processes from outside, and a whole stack of them."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from messaging.settings import read_secret
from stack import control, keys
from stack.layout import Layout
from tests.fixtures.ports import free_ports
from tests.fixtures.stack import supervisor
from web import tokens


@dataclass(frozen=True)
class Whole:
    """A running stack with all services."""

    data_dir: Path

    def client(self, tenant: str, sub: str, *roles: str) -> httpx.Client:
        """Of somebody with these roles, a sender if none are named."""
        secret = read_secret(keys.path(Layout(self.data_dir), keys.TOKEN_KEY), "the key")
        headers = {"Authorization": f"Bearer {tokens.issue(secret, sub, tenant, roles or ['sender'], 3600)}"}
        origin = control.endpoints(self.data_dir).gateway_api
        return httpx.Client(base_url=origin, headers=headers, timeout=30, trust_env=False)


@contextmanager
def running_whole() -> Iterator[Path]:
    """The data directory of a stack of its own with all services, which are ready; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="workbot-test-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)
        data_dir = Path(folder) / "stack"
        with supervisor(data_dir, free_ports(), services=True):
            control.wait_until_ready(data_dir)
            yield data_dir


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Every process below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text("utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found: set[int] = set()
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level}:
        found |= level
    return found


def wait(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Return once the condition holds; fail when it does not in time."""
    until(lambda: bool(condition()), True, seconds)


def until(found: Callable[[], object], wanted: object, seconds: float = 60.0) -> None:
    """Return once this is found; fail with what is found instead when it is not in time."""
    deadline = time.monotonic() + seconds
    while (now := found()) != wanted:
        assert time.monotonic() < deadline, f"it did not come to pass in time: {now!r}"
        time.sleep(0.02)
