"""The load of requests: filed through the gateway, carried by its relay, told to their teams, counted by analytics.

For a freeze, a second process of notifications is there: it is the one that stands still, for the stack would start
its own anew after a while, and the stack's takes over.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import psycopg

from messaging.database import conninfo
from messaging.settings import read_secret
from services.gateway.parts import RELAY
from services.notifications.notices import REQUEST_CREATED
from stack.endpoints import Endpoints
from tests.chaos import requesttrail
from tests.chaos.audit import Findings
from tests.chaos.crew import Crew, another
from tests.chaos.filing import Filer, Plan
from tests.chaos.following import FollowedLoad, Following
from tests.chaos.noop import leading
from tests.chaos.records import Kind, Strike
from tests.chaos.strikes import Victim, of_stack

TELLER, SECOND, RELAYING = "notifications-api", "notifications-api-2", "gateway-worker"
_AT_WORK = "select count(*) from ledger_workers where consumer = %s and beat_at > clock_timestamp() - interval '3 s'"
_JOIN_SECONDS, _LOOK_SECONDS = 60.0, 0.2
_COUNT = "select count(*) from notifications where tenant = any(%s) and kind = %s"


class RequestsLoad(FollowedLoad):
    """A plan's requests; one has ended when its team was told.

    Enter it on a running stack with services; `release` lets them be filed.
    """

    name = "requests"

    def __init__(self, endpoints: Endpoints, folder: Path, plan: Plan, *, second_teller: bool = False) -> None:
        self.jobs = plan.jobs
        self._endpoints = endpoints
        self._folder = folder
        self._tenants = plan.tenants
        self._second_teller = second_teller
        secret = read_secret(endpoints.token_secret_file, "the key that signs tokens")
        self._sources = requesttrail.Sources(
            endpoints.gateway_api,
            secret,
            self._database("gateway"),
            self._database("notifications"),
            endpoints.kafka,
            plan.tenants,
        )
        self.filer = Filer(endpoints.gateway_api, secret, plan)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._second_teller:
                command = ("services.notifications.main", "api")
                of = (self._endpoints.data_dir, TELLER, SECOND, command, {"WORKBOT_PORT": "0"})
                second = await asyncio.to_thread(another, *of)
                self._crew = await stack.enter_async_context(Crew(self._folder / "crew-requests", [second]))
                await self._both_work()
            self._following = Following(self.filer.run(), self._sources.notifications_database, self._count)
            stack.push_async_callback(self._following.stop)
            self._stack = stack.pop_all()
        return self

    def release(self, upto: int) -> None:
        """Requests up to this number may be filed now."""
        self.filer.gate.release(upto)

    async def _count(self, conn: "psycopg.AsyncConnection[tuple[Any, ...]]") -> int:
        row = await (await conn.execute(_COUNT, (self._tenants, REQUEST_CREATED))).fetchone()
        assert row is not None
        return int(row[0])

    def workers(self, kind: Kind) -> list[Victim]:
        """Who tells the teams."""
        if kind == "freeze":
            return [self._crew.victim(SECOND)] if self._second_teller else []
        return [of_stack(self._endpoints.data_dir, TELLER)]

    async def leaders(self) -> list[Victim]:
        """The gateway's worker, while its relay leads."""
        leader = await asyncio.to_thread(leading, self._sources.gateway_database, RELAY)
        victim = of_stack(self._endpoints.data_dir, RELAYING)
        return [victim] if leader is not None and await victim.pid() == leader else []

    async def find(self, strikes: Sequence[Strike], until: float) -> Findings:
        """The audit, once the records are complete or clearly never will be."""
        return await requesttrail.find(self._sources, self.filer, strikes, until, folder=self._folder)

    async def _both_work(self) -> None:
        """Return once two processes share the events. Raises TimeoutError."""
        async with (
            asyncio.timeout(_JOIN_SECONDS),
            await psycopg.AsyncConnection.connect(self._sources.notifications_database, autocommit=True) as conn,
        ):
            consumer = requesttrail.teller().name
            while (await (await conn.execute(_AT_WORK, (consumer,))).fetchone()) != (2,):
                await asyncio.sleep(_LOOK_SECONDS)

    def _database(self, service: str) -> str:
        own = self._endpoints.databases[service]
        return conninfo(own.url, own.password_file, "chaos-run")
