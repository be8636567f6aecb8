"""Pure: the jobs that fairness may choose from. Those of a blocked key wait unseen until it is unblocked.

A key is blocked while the outcome of one of its jobs is not settled and its jobs must keep their order.
"""

from collections.abc import ItemsView

from messaging.fairness import Fairness
from messaging.message import Key


class Ready:
    """Counts ready jobs by key: in `fairness`, or here while the key is blocked."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._blocked: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """One more job of this key is ready."""
        if self._blocked and key in self._blocked:
            self._blocked[key] += 1
        else:
            self._fairness.add(key)

    def remove(self, key: Key, jobs: int) -> None:
        """So many ready jobs of this key are gone."""
        if key in self._blocked:
            self._blocked[key] -= jobs
        else:
            self._fairness.remove(key, jobs)

    def block(self, key: Key) -> None:
        """Nothing more of this key may be chosen."""
        if key not in self._blocked:
            waiting = self._blocked[key] = self._fairness.waiting_of(key)
            if waiting:
                self._fairness.remove(key, waiting)

    def unblock(self, key: Key) -> None:
        """It may again; nothing happens to a key that is not blocked."""
        if self._blocked and (waiting := self._blocked.pop(key, 0)):
            self._fairness.add(key, waiting)

    def blocked(self) -> ItemsView[Key, int]:
        """The blocked keys with their ready jobs. Not to be changed meanwhile."""
        return self._blocked.items()
