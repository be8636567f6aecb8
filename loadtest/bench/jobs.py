"""No-op jobs a second of a fair consumer with 20 slots: one sender or a thousand, with and without the ledger."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from loadtest.bench import bare, rooms
from loadtest.bench.figures import Promise, Round, Row, at_least
from loadtest.bench.nothing import Counting, consuming
from loadtest.bench.pace import apart
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes


@dataclass(frozen=True, slots=True)
class _Case:
    """`part`: one of how many of `Sizes.jobs` it runs, so that the slow ones take no longer than the others."""

    keys: int
    ledger: bool
    part: int
    promise: Promise | None = None

    @property
    def key(self) -> str:
        return f"jobs.{self.keys}.{'ledger' if self.ledger else 'bare'}"

    @property
    def name(self) -> str:
        keys = "1 key" if self.keys == 1 else f"{self.keys:,} keys"
        return f"no-op jobs: {keys}, {'with' if self.ledger else 'no'} ledger"

    def jobs(self, sizes: Sizes) -> int:
        return max(2, sizes.jobs // self.part)


CASES = (
    _Case(1_000, False, 1, at_least(1 / 8, of="ratio")),
    _Case(1_000, True, 10, at_least(3_000)),
    _Case(1, False, 10),
    _Case(1, True, 10),
)


def rows(_sizes: Sizes) -> Sequence[Row]:
    """One a case."""
    return [Row(case.key, case.name, "jobs/s", "poll loop", case.promise) for case in CASES]


@asynccontextmanager
async def opened(servers: Servers, sizes: Sizes) -> AsyncIterator[Callable[[], Awaitable[Round]]]:
    """Every round reads the same records again, under a consumer's name that is new. The bare loop always reads the
    first case's: a tenth of them is read before a clock can tell.
    """
    with rooms.subscriptions(servers.kafka, len(CASES)) as made, rooms.database(servers.admin) as conninfo:
        client = bare.producer(servers.kafka)
        for case, sub in zip(CASES, made, strict=True):
            keys = [f"bench:{number % case.keys}" for number in range(case.jobs(sizes))]
            await apart(partial(bare.produce_all, client, sub.topic, keys))

        async def take() -> Round:
            found, everything = {}, partial(bare.consume_rate, servers.kafka, made[0].topic, sizes.jobs)
            for case, sub in zip(CASES, made, strict=True):
                jobs = case.jobs(sizes)
                counting = Counting(jobs)
                fresh = rooms.subscription(sub.topic, f"bench-{uuid.uuid4().hex[:8]}")
                async with consuming(fresh, counting, servers.kafka, conninfo if case.ledger else None):
                    value = await counting.rate()
                found[case.key] = value, await apart(everything)
            return found

        yield take
