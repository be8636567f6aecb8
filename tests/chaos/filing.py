"""Filing requests through the gateway: so many connections, a steady pace, and in between 500 at once."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from tests.chaos.gate import Gate
from tests.chaos.insisting import TOKEN_SECONDS, Refusal, until_accepted
from web import idempotency, tokens

PATH = "/api/requests"
CONNECTIONS = 20
"""Each is one sender's, who files one request after another."""
TENANTS = 4
TEAMS = ("it", "hr", "legal", "sales", "facilities")

BURST = 500
PER_SECOND = 50.0
"""The pace of the others."""

_ANSWER_SECONDS = 15.0
"""A client waits no longer, and takes it for a refusal. The gateway waits 10 s for Postgres before it answers 503."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which requests there are, and when each is due: pure. The burst begins when a third of the first `before` are
    filed, and is a third of those at most.
    """

    prefix: str
    jobs: int
    before: int

    @property
    def tenants(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(TENANTS)]

    def sender(self, connection: int) -> tuple[str, str]:
        """The tenant and the sender of a connection."""
        return self.tenants[connection % TENANTS], f"s{connection}"

    def numbers(self, connection: int) -> Iterator[int]:
        """A connection's requests, in their order."""
        return iter(range(connection, self.jobs, CONNECTIONS))

    def due(self, number: int) -> float:
        """Seconds from the beginning until it is to be filed."""
        burst = min(BURST, self.before // 3)
        first = self.before // 3
        steady = number if number < first else max(first, number - burst)
        return steady / PER_SECOND


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that was answered 201, and what its client was told before. `at`: when it was answered."""

    number: int
    tenant: str
    sender: str
    team: str
    id: str
    posted_at: float
    at: float
    refusals: tuple[Refusal, ...]

    @property
    def key(self) -> str:
        """What its event travels under."""
        return f"{self.tenant}:{self.sender}"


class Filer:
    """Files a plan, as far as the gate is open. `asked` grows with the answers, in order for each sender."""

    def __init__(self, api: str, secret: str, plan: Plan) -> None:
        self.asked: list[Asked] = []
        self.replayed = 0
        """Answers to a repeat of what had been filed already."""
        self.gate = Gate(plan.jobs)
        self._plan = plan
        self._api = api
        self._secret = secret

    async def run(self) -> None:
        """File everything. Raises Refused."""
        begun = time.monotonic()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for connection in range(CONNECTIONS):
                client = httpx.AsyncClient(base_url=self._api, timeout=_ANSWER_SECONDS, trust_env=False)
                await stack.enter_async_context(client)
                group.create_task(self._connection(client, connection, begun))

    async def _connection(self, client: httpx.AsyncClient, connection: int, begun: float) -> None:
        tenant, sender = self._plan.sender(connection)
        token = tokens.issue(self._secret, sender, tenant, ["sender"], TOKEN_SECONDS)
        client.headers["Authorization"] = f"Bearer {token}"
        for number in self._plan.numbers(connection):
            await self.gate.passed(number)
            await asyncio.sleep(max(0.0, begun + self._plan.due(number) - time.monotonic()))
            self.asked.append(await self._file(client, number, tenant, sender))

    async def _file(self, client: httpx.AsyncClient, number: int, tenant: str, sender: str) -> Asked:
        team = TEAMS[number % len(TEAMS)]
        body = {"title": f"no. {number}", "body": f"Filed by {sender}.", "team": team}
        headers = {idempotency.HEADER: f"chaos-{number}"}
        posted_at = time.time()
        answer, refusals = await until_accepted(
            lambda: client.post(PATH, json=body, headers=headers), HTTPStatus.CREATED, f"request {number}"
        )
        self.replayed += any(name in answer.headers for name in idempotency.REPLAYED)
        request = str(answer.json()["id"])
        return Asked(number, tenant, sender, team, request, posted_at, time.time(), tuple(refusals))
