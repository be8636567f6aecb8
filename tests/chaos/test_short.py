"""A short fault run, as `make chaos` does long ones: no-op jobs while a worker, a relay and servers are struck."""

from pathlib import Path

from tests.chaos import report, schedule
from tests.chaos.program import Site, jobs_run
from tests.chaos.records import Kind
from tests.chaos.stage import keep_logs, own_stack

SEED = 33
JOBS = 1500
KINDS: tuple[Kind, ...] = ("worker", "broker", "postgres-restart", "relay")


async def test_struck_under_load_the_queue_keeps_its_promises(tmp_path: Path) -> None:
    faults = schedule.plan(SEED, KINDS, len(KINDS))
    with own_stack(services=False) as data_dir:
        try:
            result = await jobs_run(Site(data_dir, tmp_path), seed=SEED, jobs=JOBS, faults=faults)
        finally:
            keep_logs(data_dir, tmp_path / "logs")
    assert {strike.fault.kind for strike in result.strikes} == set(KINDS)
    assert all(strike.back_at is not None for strike in result.strikes)
    assert [found.ended for found in result.findings] == [JOBS]
    assert result.broken(quick_servers=False) == [], report.text([result])
