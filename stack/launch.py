"""Starting a stack from the command: here in the foreground, or detached as a process of its own."""

import asyncio
import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from messaging.errors import Misconfigured
from messaging.settings import given_environment
from stack import control, daemon, journal, plan
from stack.artifacts import Progress, Store
from stack.embedded import AlreadyRunning, Embedded
from stack.layout import Layout
from stack.settings import StackSettings
from stack.status import Phase, Status

REFRESH_SECONDS = 0.5
REFRESH_READY_SECONDS = 2.0
HOPELESS_RESTARTS = 3
"""Deaths of one child during a start after which a person should look."""

Show = Callable[[Status], None]


class NotUp(Misconfigured):
    """The stack runs but has not become ready; it goes on trying."""


def foreground(settings: StackSettings, progress: Progress, fixed_ports: dict[str, int], show: Show) -> None:
    """Run a stack in this process until Ctrl-C, SIGTERM or `workbot down`. Raises AlreadyRunning, Misconfigured."""
    layout = Layout(settings.data_dir)
    layout.create()
    with (
        journal.kept_in(layout.log("supervisor")),
        Embedded(settings, progress, fixed_ports=fixed_ports, service_environment=given_environment()) as embedded,
    ):
        embedded.fetch()
        asyncio.run(_run_and_show(embedded, show))


async def _run_and_show(embedded: Embedded, show: Show) -> None:
    running = asyncio.create_task(embedded.run())
    while not running.done():
        status = await embedded.status()
        show(status)
        await asyncio.wait([running], timeout=REFRESH_READY_SECONDS if status.ready else REFRESH_SECONDS)
    await running


def detached(
    settings: StackSettings, progress: Progress, fixed_ports: dict[str, int], show: Show, timeout: float
) -> None:
    """Start a supervisor that outlives this process and return once everything is ready.

    Raises AlreadyRunning, Misconfigured for what kept it from starting, NotUp when it has not become ready in time.
    """
    layout = Layout(settings.data_dir)
    if control.is_running(layout.root):
        raise AlreadyRunning(layout)
    store = Store(settings.cache_dir, progress, settings.maven_url)
    store.jars(plan.JARS)
    store.unpacked(plan.REGISTRY)
    layout.create()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603
            daemon.command(layout.root, ports=fixed_ports),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd="/",
            start_new_session=True,
        )
        status: Status | None = None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if process.poll() is not None:
                said.seek(0)
                told = said.read().decode("utf-8", errors="replace").strip()
                raise Misconfigured(told or f"The supervisor ended with {process.returncode}.")
            with contextlib.suppress(control.NotRunning):
                status = control.status(layout.root)
                show(status)
                if status.ready:
                    return
                give_up_if_refused(status)
                _give_up_if_hopeless(status, layout)
            time.sleep(REFRESH_SECONDS / 2)
    raise _not_up(
        status, f"Not everything is ready after {timeout:g} s. See `workbot status` and `workbot logs NAME`."
    )


def give_up_if_refused(status: Status) -> None:
    """Once everything else is ready: what was refused, and what to do."""
    if status.refused and status.refused == status.ill:
        raise _not_up(status, "Until then the rest runs without it.")


def _not_up(status: Status | None, said: str) -> NotUp:
    """With a line for each reason of a refusal, naming all parts that it keeps from starting."""
    alike: dict[str, list[str]] = {}
    for child in status.refused if status is not None else ():
        alike.setdefault(child.message, []).append(child.name)
    return NotUp("\n".join([*(f"{', '.join(names)} {message}" for message, names in alike.items()), said]))


def _give_up_if_hopeless(status: Status, layout: Layout) -> None:
    for child in status.children:
        if child.phase is Phase.DIED and child.restarts + 1 >= HOPELESS_RESTARTS:
            raise _not_up(
                status,
                f"{child.name} keeps dying: {child.message}.\n{_tail(layout.log(child.name), 8)}\n"
                f"The stack goes on trying; `workbot logs {child.name}` has more, `workbot down` ends it.",
            )


def _tail(path: Path, lines: int) -> str:
    return "\n".join(path.read_text("utf-8", errors="replace").splitlines()[-lines:]) if path.exists() else ""
