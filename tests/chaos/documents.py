"""The load of documents: through the API, read by the service's own worker against the simulated provider.

Beside the stack's worker, a relay stands by (or leads); for a freeze, a second worker is there to take over.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import psycopg

from loadtest import collect
from loadtest.corpus import Document
from loadtest.provider import ProviderProcess
from messaging.database import conninfo
from messaging.settings import read_secret
from services.documents.parts import RELAY
from stack.child import Child
from stack.endpoints import Endpoints
from tests.chaos import doctrail
from tests.chaos.audit import Findings
from tests.chaos.crew import Crew, another, member
from tests.chaos.following import FollowedLoad, Following
from tests.chaos.noop import leading
from tests.chaos.records import Kind, Strike
from tests.chaos.strikes import Victim, of_stack
from tests.chaos.submitting import Submitter

WORKER, STANDBY, SECOND = "documents-worker", "documents-relay", "documents-worker-2"


class DocumentsLoad(FollowedLoad):
    """So many documents of one tenant. Enter it on a running stack with services; `release` lets them be sent."""

    name = "documents"

    def __init__(
        self,
        endpoints: Endpoints,
        provider: ProviderProcess,
        folder: Path,
        *,
        plan: Sequence[tuple[str, Document]],
        tenant: str,
        seed: int,
        second_worker: bool = False,
    ) -> None:
        self.jobs = len(plan)
        self.tenant = tenant
        self._endpoints = endpoints
        self._provider = provider
        self._folder = folder
        self._second_worker = second_worker
        own = endpoints.databases["documents"]
        self._database = conninfo(own.url, own.password_file, "chaos-run")
        secret = read_secret(endpoints.token_secret_file, "the key that signs tokens")
        self.submitter = Submitter(endpoints.documents_api, secret, tenant, plan, provider.pages_url, seed)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            members = await asyncio.to_thread(self._members)
            self.crew = await stack.enter_async_context(Crew(self._folder / "crew-documents", members))
            self._following = Following(self.submitter.run(), self._database, self._count)
            stack.push_async_callback(self._following.stop)
            self._stack = stack.pop_all()
        return self

    def release(self, upto: int) -> None:
        """Documents up to this number may be sent now."""
        self.submitter.gate.release(upto)

    async def _count(self, conn: "psycopg.AsyncConnection[tuple[Any, ...]]") -> int:
        return sum((await collect.progress(conn, self.tenant)).ended.values())

    def workers(self, kind: Kind) -> list[Victim]:
        """The stack's worker and the second one. Only one that leaves another to take over may be frozen."""
        if not self._second_worker:
            return [] if kind == "freeze" else [of_stack(self._endpoints.data_dir, WORKER)]
        return [of_stack(self._endpoints.data_dir, WORKER), self.crew.victim(SECOND)]

    async def leaders(self) -> list[Victim]:
        """The process with the relay that leads now."""
        leader = await asyncio.to_thread(leading, self._database, RELAY)
        known = [of_stack(self._endpoints.data_dir, WORKER), *(self.crew.victim(name) for name in self.crew.names)]
        return [victim for victim in known if leader is not None and await victim.pid() == leader]

    async def find(self, strikes: Sequence[Strike], until: float) -> Findings:
        """The audit, once the records are complete or clearly never will be."""
        runs_in = 2 if self._second_worker else 1
        return await doctrail.find(
            doctrail.Sources(self._database, self._endpoints.kafka, self.tenant, self._provider),
            self.submitter.sent,
            strikes,
            until,
            jobs=self.jobs,
            workers=runs_in,
            repeats=self.submitter.repeats,
            folder=self._folder,
        )

    def _members(self) -> list[Child]:
        own = self._endpoints.databases["documents"]
        told = (own.url, str(own.password_file), self._endpoints.kafka, RELAY)
        members = [member(STANDBY, "tests.chaos.standby", *told)]
        if self._second_worker:
            command = ("services.documents.main", "worker")
            # On a port of its own.
            members.append(another(self._endpoints.data_dir, WORKER, SECOND, command, {"WORKBOT_PORT": "0"}))
        return members
