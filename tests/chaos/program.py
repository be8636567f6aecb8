"""The runs there are: one fault in the middle of many documents, or of many requests; many over many no-op jobs."""

import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from loadtest.corpus import Document
from loadtest.provider import ProviderProcess
from loadtest.scenario import Scenario
from stack import control
from tests.chaos import schedule
from tests.chaos.documents import DocumentsLoad
from tests.chaos.filing import PER_SECOND, Plan
from tests.chaos.noop import NoOpLoad
from tests.chaos.records import Fault, Kind
from tests.chaos.requests import RequestsLoad
from tests.chaos.runner import Load, Result, Runner, Say
from tests.chaos.strikes import Striker, Victim

TRICKLE = 100
"""Beside the no-op jobs, one document for so many of them."""


@dataclass(frozen=True, slots=True)
class Site:
    """A running stack, the folder of a run's records, and the provider if the stack has services."""

    data_dir: Path
    folder: Path
    provider: ProviderProcess | None = None
    say: Say = print


async def documents_run(site: Site, *, seed: int, kind: Kind, documents: int, seconds: float | None = None) -> Result:
    """One fault in the middle of so many documents. `seconds`: how long a freeze or an absence lasts."""
    name = f"documents-{kind}"
    faults = schedule.single(seed, kind, seconds)
    plan = list(_scenario(seed, documents).plan())
    async with AsyncExitStack() as stack:
        load = await _documents(stack, site, name, plan, seed, second_worker=kind == "freeze")
        return await _perform(site, name, seed, faults, [load])


async def requests_run(site: Site, *, seed: int, kind: Kind, requests: int, seconds: float) -> Result:
    """One fault about when a third of so many requests is filed, 500 of them at once. More follow for as long as it
    lasts: `seconds`, if it is a freeze or an absence.
    """
    lasts = schedule.single(seed, kind, seconds)[0].seconds
    jobs = requests + round(lasts * PER_SECOND)
    faults = schedule.single(seed, kind, seconds, (0.25 * requests / jobs, 0.5 * requests / jobs))
    return await struck_requests_run(site, f"requests-{kind}", seed=seed, faults=faults, jobs=jobs, before=requests)


async def struck_requests_run(
    site: Site, name: str, *, seed: int, faults: Sequence[Fault], jobs: int, before: int
) -> Result:
    """A schedule over so many requests; see `Plan` for `before`."""
    plan = Plan(f"chaos-{name}", jobs, before)
    endpoints = control.endpoints(site.data_dir)
    frozen = any(fault.kind == "freeze" for fault in faults)
    async with RequestsLoad(endpoints, _fresh(site.folder / name), plan, second_teller=frozen) as load:
        return await _perform(site, name, seed, faults, [load])


async def jobs_run(
    site: Site,
    *,
    seed: int,
    jobs: int,
    faults: Sequence[Fault],
    killers: int = 0,
    wave_seconds: float = 0.0,
) -> Result:
    """A schedule over so many no-op jobs, with a few documents beside them if the stack has services."""
    name = "jobs"
    async with AsyncExitStack() as stack:
        folder = _fresh(site.folder / name)
        endpoints = control.endpoints(site.data_dir)
        load = NoOpLoad(endpoints, folder, jobs=jobs, seed=seed, killers=killers)
        loads: list[Load] = [await stack.enter_async_context(load)]
        if site.provider is not None:
            plan = list(_scenario(seed, max(10, jobs // TRICKLE)).plan())
            Random(seed).shuffle(plan)
            loads.append(await _documents(stack, site, f"{name}-documents", plan, seed))
        return await _perform(site, name, seed, faults, loads, wave_seconds)


async def _perform(
    site: Site, name: str, seed: int, faults: Sequence[Fault], loads: Sequence[Load], wave_seconds: float = 0.0
) -> Result:
    site.say(f"{name}: {', '.join(f'{load.jobs} {load.name}' for load in loads)}, seed {seed}")
    for line in schedule.lines(faults):
        site.say(line)

    def workers(kind: Kind) -> list[Victim]:
        return [victim for load in loads for victim in load.workers(kind)]

    async def leaders() -> list[Victim]:
        return [victim for load in loads for victim in await load.leaders()]

    striker = Striker(site.data_dir, workers, leaders)
    runner = Runner(striker, loads, wave_seconds=wave_seconds, say=site.say)
    result = await runner.perform(name, seed, faults)
    site.say(f"{name}: " + ("; ".join(result.broken()) or f"every promise was kept, {result.seconds:.0f} s"))
    return result


async def _documents(
    stack: AsyncExitStack,
    site: Site,
    name: str,
    plan: Sequence[tuple[str, Document]],
    seed: int,
    *,
    second_worker: bool = False,
) -> DocumentsLoad:
    assert site.provider is not None
    load = DocumentsLoad(
        control.endpoints(site.data_dir),
        site.provider,
        _fresh(site.folder / name),
        plan=plan,
        tenant=f"chaos-{name}",
        seed=seed,
        second_worker=second_worker,
    )
    return await stack.enter_async_context(load)


def _scenario(seed: int, documents: int) -> Scenario:
    """A noisy sender has six in ten, a third of them broken; four others share the rest."""
    quiet = max(1, documents // 10)
    noisy = documents - 4 * quiet
    return Scenario(counts=(noisy, quiet, quiet, quiet, quiet), broken=noisy // 3, seed=seed)


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
