"""The life of the faust app: stand by, recover the tables, count; end the process when it cannot be trusted any more.

One process counts at a time (`lease`), so that its tables hold all partitions and its answers are whole. An app that
does not come up because Kafka is away is thrown away for a new one; one that fails later takes the process with it,
and the supervisor starts that anew: what was not acknowledged is read again.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import faust
import structlog

from messaging import telemetry
from messaging.database import Connection
from services.analytics import store
from services.analytics.app import make_app
from services.analytics.bounds import Between, Bounds
from services.analytics.counting import Keep
from services.analytics.cube import Cube
from services.analytics.erasing import Erasing
from services.analytics.gaps import Gaps
from services.analytics.lease import Lease
from services.analytics.moving import move_back
from services.analytics.stream import Counting
from services.analytics.tables import Counts, Tables
from services.analytics.tidying import tidy

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
PING_SECONDS = 1.0
STOP_SECONDS = 20.0
STUCK_SECONDS = 60.0
"""A start or a rebalance, with the recovery of the tables it brings, may go on this long without progress."""

TIDY_SECONDS = 600.0
ERASE_SECONDS = 1.0


class Engine:
    """One process's part in counting. Start it on the loop that serves the face."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        lease: Lease,
        counting: Counting,
        erasing: Erasing,
        cube: Cube,
        keep: Keep,
        between: Between,
        *,
        bootstrap: str,
        folder: Path,
    ) -> None:
        self._group = group
        self._topics = list(topics)
        self._lease = lease
        self._counting = counting
        self._erasing = erasing
        self._cube = cube
        self._keep = keep
        self._between = between
        self._bootstrap = bootstrap
        self._folder = folder
        self._app: faust.App | None = None
        self._table: Counts | None = None
        self._whole = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Count from now on, or stand by."""
        self._task = asyncio.create_task(self._run(), name="analytics-engine")
        self._task.add_done_callback(_raise)

    async def stop(self) -> None:
        """End the app, then let go of the lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._down()
        await self._counting.pay()
        await self._lease.close()

    def healthy(self) -> bool:
        """Whether it runs, stands by, or has not begun."""
        return self._task is None or not self._task.done()

    def ready(self) -> bool:
        """Whether the tables here are whole, and so the cube."""
        app = self._app
        return self._whole and app is not None and not app.rebalancing and not app.crashed

    async def _run(self) -> None:
        log.info("analytics.stands_by", group=self._group)
        await self._lease.take()
        log.info("analytics.leads", group=self._group)
        app = await self._up()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(app))
            group.create_task(self._ping())
            group.create_task(self._tidy())
            group.create_task(self._erase())

    async def _up(self) -> faust.App:
        while True:
            app, table = make_app(
                self._group,
                self._topics,
                bootstrap=self._bootstrap,
                folder=self._folder,
                agent=self._counting.run,
                recovered=self._recovered,
            )
            self._app, self._table = app, table
            self._counting.open(table, Gaps(table.look, Bounds(app, self._between)))
            try:
                await self._started(app)
            except Exception as error:
                log.warning("analytics.not_started", error=f"{type(error).__name__}: {error}")
            else:
                return app
            await self._down()
            await asyncio.sleep(PING_SECONDS)

    async def _started(self, app: faust.App) -> None:
        """Start it, which takes as long as its tables take to recover. Raises what it fails of."""
        starting, patience = asyncio.ensure_future(app.start()), _Patience()
        try:
            while not starting.done():
                await asyncio.wait({starting}, timeout=LOOK_SECONDS)
                if app.crashed:
                    raise RuntimeError(f"It crashed: {app.crash_reason!r}")
                patience.look(_far(app))
            starting.result()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def _down(self) -> None:
        app, self._app, self._table, self._whole = self._app, None, None, False
        if app is not None:
            try:
                await asyncio.wait_for(app.stop(), STOP_SECONDS)
            except Exception as error:
                # It may have stopped half-way up; what it had open is closed with the process.
                log.warning("analytics.not_stopped", error=f"{type(error).__name__}: {error}")

    async def _recovered(self) -> None:
        """The tables are up to date: the cube is made anew of them, before the first event changes both."""
        assert self._table is not None
        began, cube = time.monotonic(), await made_of(self._table)
        self._cube.become(cube)
        assert self._app is not None
        bounds = Bounds(self._app, self._between)
        await move_back(self._app, self._topics, self._table.look, bounds.first)
        self._whole = True
        log.info("analytics.recovered", keys=cube.keys, seconds=round(time.monotonic() - began, 2))

    async def _watch(self, app: faust.App) -> None:
        """Raises RuntimeError when the app is not to be trusted any more."""
        patience = _Patience()
        while True:
            if app.crashed or app.should_stop:
                raise RuntimeError(f"The faust app has ended: {app.crash_reason!r}") from app.crash_reason
            # Of an app that is up nothing more is asked.
            patience.look(_far(app) if app.rebalancing else time.monotonic())
            telemetry.TABLE_KEYS.labels(self._group).set(self._cube.keys)
            await asyncio.sleep(LOOK_SECONDS)

    async def _ping(self) -> None:
        """Raises LostLease when another process counts."""
        while True:
            await self._lease.run(_ping)
            await asyncio.sleep(PING_SECONDS)

    async def _tidy(self) -> None:
        """Take buckets past their time out of the tables."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            if self.ready() and self._table is not None:
                await tidy(self._table, self._cube, self._keep)

    async def _erase(self) -> None:
        """Take out the counts of senders who are erased. Raises LostLease when another process counts."""
        while True:
            await asyncio.sleep(ERASE_SECONDS)
            if self.ready() and self._table is not None:
                await self._erasing.run(self._table)


async def made_of(table: Counts) -> Cube:
    """All counts of a table. Made anew when something was written meanwhile, such as a batch that was in hand when a
    rebalance began: it would be in this cube or not."""
    while True:
        cube, writes = Cube(), table.writes
        async for key, value in table.everything():
            cube.apply(key, None, value)
        if table.writes == writes:
            return cube


class _Patience:
    """Waits for something that shows where it is. Raises RuntimeError when that stays the same for too long."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._since = 0.0

    def look(self, place: float) -> None:
        now = time.monotonic()
        if place != self._last:
            self._last, self._since = place, now
        elif now - self._since > STUCK_SECONDS:
            raise RuntimeError(f"It has come no further for {STUCK_SECONDS:g} seconds.")


def _far(app: faust.App) -> float:
    """How far the tables have been recovered: the sum of their changelogs' offsets."""
    assert isinstance(app.tables, Tables)
    return float(sum(offset or 0 for offset in app.tables.recovery.active_offsets.values()))


async def _ping(conn: Connection) -> None:
    await store.answers(conn)


def _raise(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
