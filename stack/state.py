"""stack.json: what the next start should know about this one (its ports), and what a person may look up in it."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class State:
    """`pid` is the supervisor's while it runs; the ports stay after it has ended. `fixed` names those that a person
    gave; `given` has a mark for each setting of the last start (None: not kept).
    """

    ports: dict[str, int] = field(default_factory=dict)
    pid: int | None = None
    children: dict[str, int] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    given: dict[str, str] | None = None


def read(path: Path) -> State:
    """The last state written, or an empty one; a file that does not hold one counts as missing."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        ports = {str(name): int(port) for name, port in raw["ports"].items()}
        children = {str(name): int(pid) for name, pid in raw["children"].items()}
        given = raw.get("given")
        marks = None if given is None else {str(name): str(mark) for name, mark in given.items()}
        return State(ports, raw["pid"], children, [str(name) for name in raw.get("fixed", [])], marks)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return State()


def write(path: Path, state: State) -> None:
    """Replace the file in one step."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(asdict(state), indent=2) + "\n", "utf-8")
    os.replace(fresh, path)
