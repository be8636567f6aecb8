"""What one choice of the scheduler costs while very many senders wait, beside a heap of as many."""

import heapq
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from loadtest.bench import rooms
from loadtest.bench.figures import Round, Row, at_most, middle_and_slow
from loadtest.bench.pace import Stop, apart, check
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes
from messaging.fairness import Fairness
from messaging.message import Key
from messaging.policy import Policy

PICKS = 20_000
LIMIT_US = 50
_CASES = {"pick.one": "senders", "pick.own": "tenants"}
"""Senders of one tenant; as many tenants with one sender each."""

_LOOK_EVERY = 1_000


def rows(sizes: Sizes) -> Sequence[Row]:
    """Median and p99 in microseconds, for senders of one tenant and of as many tenants."""
    found = []
    for key, which in _CASES.items():
        name = f"pick of {sizes.senders:,} {which}"
        found += [
            Row(f"{key}.p50", f"{name}, p50", "µs", "heap pop + push"),
            Row(f"{key}.p99", f"{name}, p99", "µs", "heap pop + push", at_most(LIMIT_US)),
        ]
    return found


@asynccontextmanager
async def opened(_servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """The senders are there once; every round goes on where the last one ended."""
    crowds = {
        key: await apart(lambda stop, own=key == "pick.own": Crowd(sizes.senders, stop, tenants=own))  # type: ignore[misc]
        for key in _CASES
    }

    async def take() -> Round:
        found: dict[str, tuple[float, float]] = {}
        for key, crowd in crowds.items():
            found |= middle_and_slow(key, await apart(crowd.picks), await apart(crowd.heap))
        return found

    yield take


class Crowd:
    """Senders with two jobs waiting each, and a heap of the same senders."""

    def __init__(self, senders: int, stop: Stop, *, tenants: bool) -> None:
        self._rng = random.Random(1)  # noqa: S311 - spreads lengths, guards nothing
        self._fairness = Fairness(Policy(2, rooms.SLOTS, lend=True))
        self._running: list[Key] = []
        keys = [Key(f"t{number}" if tenants else "t", f"s{number}") for number in range(senders)]
        for number, key in enumerate(keys):
            if number % _LOOK_EVERY == 0:
                check(stop)
            self._fairness.add(key, 2)
        self._heap = [(self._rng.random(), number, key) for number, key in enumerate(keys)]
        heapq.heapify(self._heap)

    def picks(self, stop: Stop) -> list[float]:
        """Microseconds of each pick. Between two, a job that was picked ends and its sender sends another."""
        fairness = self._fairness
        costs: list[float] = []
        while len(costs) < PICKS:
            if len(costs) % _LOOK_EVERY == 0:
                check(stop)
            while fairness.free_slots:
                begun = time.perf_counter()
                picked = fairness.pick()
                costs.append((time.perf_counter() - begun) * 1e6)
                assert picked is not None
                self._running.append(picked.key)
                fairness.add(picked.key)
            ended = self._running.pop(self._rng.randrange(len(self._running)))
            fairness.finished(ended, self._rng.uniform(0.5, 1.5))
        return costs

    def heap(self, stop: Stop) -> list[float]:
        """Microseconds of taking the first entry and putting it back where its share says."""
        heap, costs = self._heap, []
        for number in range(PICKS):
            if number % _LOOK_EVERY == 0:
                check(stop)
            length = self._rng.uniform(0.5, 1.5)
            begun = time.perf_counter()
            used, place, key = heapq.heappop(heap)
            heapq.heappush(heap, (used + length, place, key))
            costs.append((time.perf_counter() - begun) * 1e6)
        return costs
