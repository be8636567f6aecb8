"""How much memory a process and all it started use: proportional set size, so that shared pages count once."""

from pathlib import Path


def trees(pids: dict[str, int]) -> dict[str, int]:
    """Bytes per name, of the process and its descendants; a name is missing where the system does not tell."""
    offspring: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text("utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        offspring.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    sizes = {name: _tree(pid, offspring) for name, pid in pids.items()}
    return {name: size for name, size in sizes.items() if size}


def own(pid: int) -> int:
    """Bytes of one process; 0 where the system does not tell."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _tree(pid: int, offspring: dict[int, list[int]]) -> int:
    return own(pid) + sum(_tree(child, offspring) for child in offspring.get(pid, ()))
