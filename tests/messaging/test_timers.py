"""Claimed timers: one instance runs each, crashes are taken over, stolen runs undo themselves."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from psycopg_pool import AsyncConnectionPool

from messaging.database import Connection, Pool
from messaging.timers import Timers, Work
from tests.fixtures.outbox import Service, migrated, wait_for
from tests.fixtures.stack import Database


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    with migrated(database) as migrated_service:
        migrated_service.execute("CREATE TABLE runs (timer text, who text, at timestamptz DEFAULT clock_timestamp())")
        migrated_service.execute("GRANT ALL ON runs TO PUBLIC")
        yield migrated_service


@asynccontextmanager
async def running(
    service: Service, timers: dict[str, tuple[float, Work]], lease: float = 30.0
) -> AsyncIterator[Timers]:
    pool: Pool = AsyncConnectionPool(
        service.conninfo, min_size=2, max_size=4, open=False, check=AsyncConnectionPool.check_connection
    )
    async with pool:
        started = Timers(pool, timers, lease_seconds=lease)
        started.start()
        try:
            yield started
        finally:
            await started.stop()


def note(timer: str, who: str) -> Callable[[Connection], Awaitable[None]]:
    async def work(connection: Connection) -> None:
        await connection.execute("INSERT INTO runs VALUES (%s, %s)", [timer, who])

    return work


def runs(service: Service, timer: str = "t") -> list[str]:
    return [str(row[0]) for row in service.execute("SELECT who FROM runs WHERE timer = %s ORDER BY at", timer)]


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def test_three_instances_run_each_timer_once_a_period(service: Service) -> None:
    """Counted against the database's clock: never two runs within one period."""
    async with (
        running(service, {"t": (0.3, note("t", "a")), "slow": (60.0, note("slow", "a"))}),
        running(service, {"t": (0.3, note("t", "b")), "slow": (60.0, note("slow", "b"))}),
        running(service, {"t": (0.3, note("t", "c")), "slow": (60.0, note("slow", "c"))}) as timers,
    ):
        await until(lambda: len(runs(service)) >= 5)
        assert timers.healthy()
    gaps = service.execute("SELECT extract(epoch FROM at - lag(at) OVER (ORDER BY at)) FROM runs WHERE timer = 't'")
    assert min(float(str(gap)) for (gap,) in gaps[1:]) >= 0.28
    assert len(runs(service, "slow")) == 1


async def test_a_run_that_has_more_to_do_goes_on_at_once_each_part_by_itself(service: Service) -> None:
    """What one part did is committed before the next begins, and a timer that is due meanwhile has its turn."""
    seen: list[int] = []

    async def parts(connection: Connection) -> bool:
        seen.append(len(runs(service)))  # on a connection of its own: what is committed
        await note("t", f"part {len(seen)}")(connection)
        return len(seen) < 4

    async with running(service, {"t": (3600.0, parts), "other": (3600.0, note("other", "x"))}):
        await until(lambda: len(runs(service)) == 4)
        await until(lambda: bool(service.execute("SELECT 1 FROM timers WHERE name = 't' AND due_at > now()")))
    assert seen == [0, 1, 2, 3]
    turns = [row[0] for row in service.execute("SELECT timer FROM runs ORDER BY at")]
    assert turns.index("other") <= 1


async def test_effects_and_the_end_of_the_run_are_one(service: Service) -> None:
    """A run that fails leaves nothing, is recorded, and tried again; other timers go on."""
    attempts = 0

    async def failing(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        await note("t", f"attempt {attempts}")(connection)
        if attempts < 3:
            raise ZeroDivisionError("not today")

    async with running(service, {"t": (0.2, failing), "other": (0.2, note("other", "x"))}):
        await until(lambda: attempts == 2)
        await until(lambda: bool(service.execute("SELECT 1 FROM timers WHERE name = 't' AND failures = 2")))
        ((error,),) = service.execute("SELECT last_error FROM timers WHERE name = 't'")
        assert "not today" in str(error)
        assert runs(service) == []
        await until(lambda: runs(service)[:1] == ["attempt 3"])
        await until(
            lambda: service.execute("SELECT failures, last_error FROM timers WHERE name = 't'") == [(0, None)]
        )
    assert len(runs(service, "other")) >= 2


async def test_a_crashed_run_is_taken_over_after_its_lease(service: Service) -> None:
    """A real process is killed in the middle of its run."""
    program = (
        "import asyncio, sys\nfrom psycopg_pool import AsyncConnectionPool\nfrom messaging.timers import Timers\n"
        "async def hang(connection):\n"
        "    await connection.execute(\"INSERT INTO runs VALUES ('t', 'crashed')\")\n"
        "    await asyncio.sleep(60)\n"
        "async def main():\n"
        "    async with AsyncConnectionPool(sys.argv[1], min_size=2, open=False) as pool:\n"
        "        Timers(pool, {'t': (60.0, hang)}, lease_seconds=1.0).start()\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, service.conninfo])
    try:
        wait_for(lambda: bool(service.execute("SELECT 1 FROM timers WHERE leased_until > clock_timestamp()")))
        async with running(service, {"t": (60.0, note("t", "heir"))}, lease=1.0):
            # The lease is renewed for as long as the process lives, so nobody else runs it.
            await asyncio.sleep(2.0)
            assert runs(service) == []
            process.kill()
            process.wait()
            await until(lambda: runs(service) == ["heir"])
    finally:
        process.kill()
        process.wait()


async def test_a_run_whose_claim_was_taken_undoes_itself(service: Service) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(connection: Connection) -> None:
        await note("t", "fenced")(connection)
        started.set()
        await go_on.wait()

    async with running(service, {"t": (60.0, slow)}):
        await started.wait()
        service.execute("UPDATE timers SET token = gen_random_uuid()")
        go_on.set()
        await asyncio.sleep(0.3)
    assert runs(service) == []
    assert service.execute("SELECT token IS NOT NULL FROM timers") == [(True,)]


async def test_stopping_in_the_middle_hands_over_at_once(service: Service) -> None:
    started = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await note("t", "stopped")(connection)
        started.set()
        await asyncio.sleep(60)

    async with running(service, {"t": (60.0, slow)}):
        await started.wait()
    async with running(service, {"t": (60.0, note("t", "next"))}):
        await until(lambda: runs(service) == ["next"], 20.0)


async def test_a_shorter_period_counts_from_now(service: Service) -> None:
    async with running(service, {"t": (3600.0, note("t", "x"))}):
        await until(lambda: len(runs(service)) == 1)
    async with running(service, {"t": (0.2, note("t", "x"))}):
        await until(lambda: len(runs(service)) >= 3)


async def test_a_lost_database_is_waited_for(service: Service) -> None:
    """The pool's connections are killed under the timers: they go on with new ones."""
    async with running(service, {"t": (0.2, note("t", "x"))}, lease=1.0) as timers:
        await until(lambda: len(runs(service)) >= 1)
        service.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename LIKE 'app\\_%'"
        )
        seen = len(runs(service))
        await until(lambda: len(runs(service)) >= seen + 2, 30.0)
        assert timers.healthy()
