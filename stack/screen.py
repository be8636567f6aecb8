"""What the command draws: the table of children, addresses, a live view of a start."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stack import ports
from stack.endpoints import Endpoints
from stack.status import ChildStatus, Phase, Status

_COLOURS = {
    Phase.READY: "green",
    Phase.DONE: "green",
    Phase.SILENT: "red",
    Phase.DIED: "red",
    Phase.REFUSED: "red",
    Phase.STOPPED: "dim",
    Phase.WAITING: "dim",
}


def table(status: Status) -> Table:
    """One row per child, the supervisor last."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("name", no_wrap=True)
    drawn.add_column("state", overflow="fold")
    drawn.add_column("for", justify="right", no_wrap=True)
    drawn.add_column("address", no_wrap=True)
    drawn.add_column("pid", justify="right", no_wrap=True)
    drawn.add_column("memory", justify="right", no_wrap=True)
    now = time.time()
    for child in status.children:
        drawn.add_row(
            child.name,
            _state(child),
            _duration(now - child.since),
            child.address,
            str(child.pid or ""),
            _size(child.memory_bytes),
        )
    # Its own state: whether the others are ready is said by their rows.
    state = Text("stopping" if status.stopping else "running")
    drawn.add_row(
        "supervisor", state, _duration(now - status.started_at), "", str(status.pid), _size(status.memory_bytes)
    )
    return drawn


def addresses(endpoints: Endpoints) -> Table:
    """Where to go from here."""
    drawn = Table(box=None, pad_edge=False, show_header=False)
    drawn.add_column(style="dim")
    drawn.add_column(no_wrap=True)
    for name, address in (
        ("gateway", endpoints.gateway_api),
        ("its reference", endpoints.gateway_api and f"{endpoints.gateway_api}/docs"),
        ("gateway worker", endpoints.gateway_worker),
        ("documents API", endpoints.documents_api),
        ("its reference", endpoints.documents_api and f"{endpoints.documents_api}/docs"),
        ("documents worker", endpoints.documents_worker),
        ("notifications", endpoints.notifications_api),
        ("its reference", endpoints.notifications_api and f"{endpoints.notifications_api}/docs"),
        ("analytics", endpoints.analytics_api),
        ("its reference", endpoints.analytics_api and f"{endpoints.analytics_api}/docs"),
        ("Kafka", endpoints.kafka),
        ("schema registry", endpoints.registry),
        ("Postgres", endpoints.postgres),
        ("its data", str(endpoints.postgres_data)),
        ("passwords", str(endpoints.admin.password_file.parent)),
    ):
        if address:
            drawn.add_row(name, address)
    return drawn


def moved(endpoints: Endpoints) -> str:
    """Which ports are not the usual ones, or nothing."""
    others = [f"{name} {port}" for name, port in endpoints.ports.items() if port != ports.DEFAULTS[name]]
    return f"Not on their usual ports: {', '.join(others)}." if others else ""


class View:
    """Follows a stack: a table that redraws itself on a terminal, a line per change elsewhere. Use as a context."""

    def __init__(self, console: Console, footer: str = "", *, refusals: bool = True) -> None:
        """`refusals`: lines give the reason of one, else whoever opened the view does."""
        self._console = console
        self._refusals = refusals
        self._footer = footer
        self._told: dict[str, str] = {}
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> "View":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: Status) -> None:
        """Draw it anew, or tell what has changed since the last time."""
        if self._live is not None:
            parts: list[RenderableType] = [table(status)]
            if self._footer:
                parts.append(Text(self._footer, style="dim"))
            self._live.update(Group(*parts))
            return
        for child in status.children:
            # What a probe says while the child starts is for the table; lines tell of phases and deaths.
            ill = child.phase in (Phase.DIED, Phase.SILENT) or (child.phase is Phase.REFUSED and self._refusals)
            told = child.state if ill else child.phase.value
            if self._told.get(child.name) == told:
                continue
            alike = [name for name, before in self._told.items() if before == told] if ill else []
            self._told[child.name] = told
            line = f"{child.phase.value}, as {alike[0]} is" if alike else told
            self._console.print(f"{child.name}: {line}", highlight=False, markup=False)


def _state(child: ChildStatus) -> Text:
    # What to do about a stop is too long for a column; who asks for the status is told of it below.
    said = child.message.partition(";")[0] if child.phase in (Phase.STOPPED, Phase.STOPPING) else child.message
    message = f"  {said}" if said and not child.ready else ""
    again = f"  {child.restarts} restarts" if child.restarts > 1 else "  1 restart" if child.restarts else ""
    return Text.assemble((child.phase.value, _COLOURS.get(child.phase, "yellow")), (again + message, "dim"))


def _size(size: int | None) -> str:
    return f"{size / 2**20:.0f} MB" if size else ""


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"
