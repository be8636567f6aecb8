"""The servers the bench runs on: those of a running stack, or of one that lives only as long as the bench."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from messaging import settings as environment
from messaging.database import conninfo
from messaging.errors import Misconfigured
from messaging.settings import given_environment, read_secret
from stack import control, daemon, guard, plan, progress
from stack.artifacts import Store
from stack.settings import StackSettings

_GRACE_SECONDS = 60.0
_READY_SECONDS = 300.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses and keys. `admin` is the superuser's conninfo, to make a database with."""

    kafka: str
    registry: str
    admin: str = field(repr=False)
    documents_api: str
    token_secret: str = field(repr=False)


@contextmanager
def opened(data_dir: Path, screen: Console) -> Iterator[Servers]:
    """The running stack's, which is left as it was, or those of a stack that is started and deleted again."""
    if control.is_running(data_dir):
        control.wait_until_ready(data_dir)
        yield of(data_dir)
        return
    with _scratch(screen) as scratch:
        yield of(scratch)


def of(data_dir: Path) -> Servers:
    """The servers of a running stack. Raises NotRunning."""
    endpoints = control.endpoints(data_dir)
    return Servers(
        kafka=endpoints.kafka,
        registry=endpoints.registry,
        admin=conninfo(endpoints.admin.url, endpoints.admin.password_file, "bench"),
        documents_api=endpoints.documents_api,
        token_secret=read_secret(endpoints.token_secret_file, "the key that signs tokens"),
    )


@contextmanager
def _scratch(screen: Console) -> Iterator[Path]:
    """A stack in a folder of its own, under a guard: it ends with this process, however that ends."""
    settings = environment.load(StackSettings)
    store = Store(settings.cache_dir, progress.shown_on(screen), settings.maven_url)
    store.jars(plan.JARS)
    store.unpacked(plan.REGISTRY)
    with tempfile.TemporaryDirectory(prefix="workbot-bench-", ignore_cleanup_errors=True) as folder:
        # Postgres's own user must be able to pass when the bench is run by root.
        os.chmod(folder, 0o711)  # noqa: S103
        data_dir, told = Path(folder) / "stack", Path(folder) / "supervisor.out"
        reader, writer = os.pipe()
        command = guard.argv(daemon.command(data_dir, ephemeral=True, ports={}), leash=reader, grace=_GRACE_SECONDS)
        with told.open("wb") as said:
            process = subprocess.Popen(  # noqa: S603
                command, pass_fds=[reader], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=_environment()
            )
        os.close(reader)
        try:
            with screen.status("No stack runs; starting one for the bench"):
                _wait(data_dir, lambda: _ended(process, told))
            yield data_dir
        finally:
            os.close(writer)
            with screen.status("Stopping it"):
                process.wait(_GRACE_SECONDS + 10)


def _wait(data_dir: Path, check: Callable[[], None]) -> None:
    """Until everything is ready. Raises what `check` raises, ControlFailed when it takes too long."""
    while True:
        with contextlib.suppress(control.NotRunning):
            control.status(data_dir)
            break
        check()
        time.sleep(_LOOK_SECONDS)
    control.wait_until_ready(data_dir, _READY_SECONDS)


def _ended(process: "subprocess.Popen[bytes]", told: Path) -> None:
    if process.poll() is not None:
        said = told.read_text("utf-8", errors="replace").strip()
        raise Misconfigured(f"The bench's own stack ended: {said or process.returncode}")


def _environment() -> dict[str, str]:
    """Ours, without fixed ports: those are the stack's that the person runs."""
    given = {name: value for name, value in given_environment().items() if not name.startswith("WORKBOT_PORT_")}
    return {**environment.inherited_environment(), **given}
