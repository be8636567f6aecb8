"""Talking to a running stack: what the command, the load test and tests use. Synchronous.

with the stack up:   status(), endpoints(), reach(data_dir, *parts), restart(name, env), halt(name)
to end it:           stop()
whether it runs:     is_running()
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from messaging.errors import Misconfigured
from stack import locks, sockets
from stack.endpoints import Endpoints
from stack.layout import Layout
from stack.settings import PROJECT
from stack.status import Status, complaints

Answer = TypeVar("Answer")

DEFAULT_DATA_DIR = PROJECT / ".workbot"


class NotRunning(Misconfigured):
    """No stack runs on this data directory. `workbot up` starts one."""


class PartsNotReady(Misconfigured):
    """A part that is needed is not ready. The message says which, why, and what to do."""


class ControlFailed(Misconfigured):
    """The supervisor refused, or could not do what it was asked."""


def is_running(data_dir: Path = DEFAULT_DATA_DIR) -> bool:
    """Whether a supervisor holds this data directory."""
    return locks.is_held(Layout(data_dir).supervisor_lock)


def status(data_dir: Path = DEFAULT_DATA_DIR) -> Status:
    """How every child is. Raises NotRunning."""
    return _read(Status.from_json, _ask(data_dir, {"do": "status"}), data_dir)


def endpoints(data_dir: Path = DEFAULT_DATA_DIR) -> Endpoints:
    """Every address, valid for as long as this stack runs. Raises NotRunning."""
    return _read(Endpoints.from_json, _ask(data_dir, {"do": "endpoints"}), data_dir)


def reach(data_dir: Path, *parts: str) -> Endpoints:
    """Every address, once it is seen that these parts of the stack are ready. Raises NotRunning, PartsNotReady."""
    if ill := [child for child in status(data_dir).ill if child.name in parts]:
        raise PartsNotReady("\n".join(complaints(ill)))
    return endpoints(data_dir)


def restart(
    name: str, env: Mapping[str, str] | None = None, data_dir: Path = DEFAULT_DATA_DIR, timeout: float = 120.0
) -> None:
    """Stop a child cleanly, start it again, and return once it is ready.

    `env` lies on top of the child's own variables and stays, also when it crashes and is restarted, until the next
    call of `restart` for it; None takes it away. Raises NotRunning, ControlFailed.
    """
    _ask(data_dir, {"do": "restart", "name": name, "env": dict(env or {})}, timeout)


def halt(name: str, data_dir: Path = DEFAULT_DATA_DIR, timeout: float = 60.0) -> None:
    """Stop a child cleanly and keep it down until `restart`. Raises NotRunning, ControlFailed."""
    _ask(data_dir, {"do": "halt", "name": name}, timeout)


def stop(data_dir: Path = DEFAULT_DATA_DIR, timeout: float = 90.0) -> bool:
    """End the stack and wait until it is gone; False when none runs. Raises ControlFailed when it takes too long."""
    lock = Layout(data_dir).supervisor_lock
    deadline = time.monotonic() + timeout
    try:
        _ask(data_dir, {"do": "stop"})
    except NotRunning:
        if not locks.is_held(lock):
            return False
    while locks.is_held(lock):
        if time.monotonic() >= deadline:
            raise ControlFailed(f"The stack has not ended within {timeout:g} s; see the log of its supervisor.")
        time.sleep(0.05)
    return True


def wait_until_ready(data_dir: Path = DEFAULT_DATA_DIR, timeout: float = 120.0) -> Status:
    """The first status in which everything is ready. Raises NotRunning, ControlFailed when it takes too long."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            current = status(data_dir)
        except NotRunning:
            # One that has only just started holds its lock before it answers.
            if not is_running(data_dir):
                raise
            waiting = "the supervisor"
        else:
            if current.ready:
                return current
            if current.refused:
                raise ControlFailed("\n".join(complaints(current.refused)))
            waiting = ", ".join(f"{child.name} ({child.phase})" for child in current.ill)
        if time.monotonic() >= deadline:
            raise ControlFailed(
                f"Not ready within {timeout:g} s: {waiting}. `workbot logs NAME` tells why, `workbot down` ends it."
            )
        time.sleep(0.1)


def _read(read: Callable[[Mapping[str, Any]], Answer], raw: Mapping[str, Any], data_dir: Path) -> Answer:
    try:
        return read(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise ControlFailed(
            f"The stack on {data_dir} was started by another version of this code: `workbot down`, then `workbot up`."
        ) from error


def _ask(data_dir: Path, request: Mapping[str, Any], timeout: float = 10.0) -> dict[str, Any]:
    try:
        with (
            sockets.connect(Layout(data_dir).control_socket, timeout) as connection,
            connection.makefile("rwb") as line,
        ):
            line.write(json.dumps(request).encode() + b"\n")
            line.flush()
            raw = line.readline()
    except TimeoutError as error:
        raise ControlFailed(f"The stack gave no answer within {timeout:g} s.") from error
    except OSError as error:
        raise NotRunning(f"No stack is running on {data_dir}. `workbot up` starts one.") from error
    if not raw:
        raise NotRunning(f"The stack on {data_dir} has just ended.")
    answer: dict[str, Any] = json.loads(raw)
    if "error" in answer:
        raise ControlFailed(answer["error"])
    return answer
