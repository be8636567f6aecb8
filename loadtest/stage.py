"""The running stack as the load test needs it: its addresses, and its documents service pointed at the simulator.

The service knows nothing of this. It gets the settings anybody could give it: another model address, an allowed web
host, a policy.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from loadtest.provider import ProviderProcess
from loadtest.scenario import Scenario
from messaging.database import conninfo
from stack import control
from stack.child import INFRA
from stack.endpoints import Endpoints

API, WORKER = "documents-api", "documents-worker"
SERVICE = "documents"
_SLOWEST_CALLS = 4.0
"""With ordered time-outs, the client waits this many times the mean: more than any call that does answer takes."""


def settings(scenario: Scenario, provider: ProviderProcess) -> Mapping[str, Mapping[str, str]]:
    """The variables each process gets for the length of the run."""
    fetch = {"WORKBOT_FETCH_ALLOW": provider.address}
    worker = {
        "WORKBOT_MODEL_URL": provider.model_url,
        "WORKBOT_READER_PER_KEY": str(scenario.per_sender),
        "WORKBOT_READER_TOTAL": str(scenario.total),
        "WORKBOT_READER_LEND": str(scenario.lend).lower(),
    }
    if scenario.timeout_rate:
        worker["WORKBOT_MODEL_TIMEOUT_SECONDS"] = f"{max(1.0, _SLOWEST_CALLS * scenario.mean):g}"
    return {API: fetch, WORKER: fetch | worker}


class Stage:
    """One running stack. Raises control.NotRunning when there is none."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.endpoints: Endpoints = control.endpoints(data_dir)

    def check(self) -> None:
        """Raises control.PartsNotReady, before anything is touched, unless all that the run needs is ready."""
        control.reach(self._data_dir, *INFRA, "deploy", API, WORKER)

    def database(self) -> str:
        """A connection string for the service's database, under the service's own role."""
        database = self.endpoints.databases[SERVICE]
        return conninfo(database.url, database.password_file, "load-test")

    @asynccontextmanager
    async def pointed_at(
        self, scenario: Scenario, provider: ProviderProcess, say: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Run a block with the service on these terms; afterwards, however it ends, the service is as it was."""
        say("Pointing the documents service at the simulated provider.")
        given = settings(scenario, provider)
        restarts = (self._restart(name, variables) for name, variables in given.items())
        pointing = asyncio.gather(*restarts, return_exceptions=True)
        try:
            # Shielded: a restart under way cannot be taken back, and must not come after the one that undoes it.
            for failure in await asyncio.shield(pointing):
                if failure is not None:
                    raise failure
            yield
        finally:
            say("Giving the documents service its own settings back.")
            await asyncio.wait([pointing])
            await asyncio.gather(*(self._restart(name, None) for name in given))

    async def _restart(self, name: str, variables: Mapping[str, str] | None) -> None:
        await asyncio.to_thread(control.restart, name, variables, self._data_dir)
