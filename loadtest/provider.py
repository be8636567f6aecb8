"""The simulator's process, as the run sees it."""

import asyncio
import json
import sys
from types import TracebackType
from typing import Self

import httpx

from loadtest.faults import Terms
from loadtest.records import ProviderCall
from messaging.errors import Outage


class ProviderProcess:
    """Starts the simulator on entry and ends it on exit. It also ends by itself when this process dies.

    Entering raises Outage when it does not start.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""
        """host:port it listens on."""

    @property
    def model_url(self) -> str:
        """Base address of its OpenAI-compatible API."""
        return f"http://{self.address}/v1"

    @property
    def pages_url(self) -> str:
        """Base address of the corpus's web pages."""
        return f"http://{self.address}/pages"

    async def records(self) -> list[ProviderCall]:
        """Every request it has answered so far. Raises httpx.HTTPError when it cannot be reached."""
        async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
            answer = (await client.get(f"http://{self.address}/records")).raise_for_status()
        return [ProviderCall(**record) for record in answer.json()]

    async def __aenter__(self) -> Self:
        terms = self._terms
        options = {
            "--seed": terms.seed,
            "--mean": terms.mean,
            "--error-rate": terms.error_rate,
            "--timeout-rate": terms.timeout_rate,
            "--throttle-rate": terms.throttle_rate,
            "--retry-after": terms.retry_after,
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "loadtest.simulator",
            "--end-with-stdin",
            *(str(word) for option in options.items() for word in option),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C goes to the run, which ends the simulator itself, after the worker has stopped using it.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            code = await self._process.wait()
            raise Outage(f"The simulated provider did not start (exit code {code}).", "provider")
        self.address = f"127.0.0.1:{json.loads(line)['port']}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
