"""Who may start, and who must stop first: pure, over `needs` (a child's name to the names it depends on)."""

from collections.abc import Collection, Mapping, Set

from messaging.errors import Misconfigured

Needs = Mapping[str, Collection[str]]


def check(needs: Needs) -> None:
    """Raise Misconfigured for an unknown name or a circle."""
    for name, required in needs.items():
        unknown = sorted(set(required) - needs.keys())
        if unknown:
            raise Misconfigured(f"{name} needs {unknown[0]}, which is not part of the stack.")
    levels(needs)


def may_start(name: str, needs: Needs, ready: Set[str]) -> bool:
    """Whether everything the child needs is ready."""
    return all(required in ready for required in needs[name])


def may_stop(name: str, needs: Needs, running: Set[str]) -> bool:
    """Whether nothing that still runs needs the child."""
    return not any(name in required for other, required in needs.items() if other in running and other != name)


def levels(needs: Needs) -> list[list[str]]:
    """The names in start order, grouped: all of one group may start together. Raises Misconfigured for a circle."""
    done: set[str] = set()
    result: list[list[str]] = []
    while len(done) < len(needs):
        level = [name for name in needs if name not in done and may_start(name, needs, done)]
        if not level:
            raise Misconfigured(f"These need each other in a circle: {', '.join(sorted(needs.keys() - done))}.")
        result.append(level)
        done.update(level)
    return result
