"""Every measurement, in rounds: the part, its bare loop, the part, its bare loop."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from loadtest.bench import backlog, commit, jobs, pick, post, requests, start
from loadtest.bench.figures import Figure, Round, Row
from loadtest.bench.servers import Servers
from loadtest.bench.sizes import Sizes

Take = Callable[[], Awaitable[Round]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What it measures, and how: opened once, then asked for one round after the other."""

    rows: Callable[[Sizes], Sequence[Row]]
    opened: Callable[[Servers, Sizes], AbstractAsyncContextManager[Take]]


MEASUREMENTS: Mapping[str, Measurement] = {
    "backlog": Measurement(backlog.rows, backlog.opened),
    "commit": Measurement(commit.rows, commit.opened),
    "jobs": Measurement(jobs.rows, jobs.opened),
    "start": Measurement(start.rows, start.opened),
    "pick": Measurement(pick.rows, pick.opened),
    "post": Measurement(post.rows, post.opened),
    "requests": Measurement(requests.rows, requests.opened),
}


async def perform(
    servers: Servers, sizes: Sizes, names: Sequence[str], on_round: Callable[[str, int], None]
) -> list[Figure]:
    """The figures of these measurements. `on_round(name, number)` hears of each round that begins, from 0; of a
    measurement's first one before its topics and databases are made.
    """
    figures = []
    for name in names:
        measurement = MEASUREMENTS[name]
        on_round(name, 0)
        rounds = []
        async with measurement.opened(servers, sizes) as take:
            for number in range(sizes.rounds):
                if number:
                    on_round(name, number)
                rounds.append(await take())
        figures += [Figure(row, tuple(round_[row.key] for round_ in rounds)) for row in measurement.rows(sizes)]
    return figures
