"""Clients of the documents API that do not give up: the same idempotency key again until the answer is a 202."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

import httpx

from loadtest.corpus import Document
from loadtest.records import Sent
from tests.chaos.gate import Gate
from tests.chaos.insisting import TOKEN_SECONDS, until_accepted
from web import tokens

CLIENTS = 4
"""How many documents are on their way at once."""


class Submitter:
    """Sends documents in order, as far as the gate is open. `sent` grows with the answers.

    A document's `error` is what its clients were told before the 202.
    """

    def __init__(
        self, api: str, secret: str, tenant: str, plan: Sequence[tuple[str, Document]], pages: str, seed: int
    ) -> None:
        self.sent: list[Sent] = []
        self.repeats = 0
        self._api = api
        self._secret = secret
        self._tenant = tenant
        self._plan = plan
        self._pages = f"{pages}/{seed}"
        self.gate = Gate(len(plan))
        self._next = 0

    async def run(self) -> None:
        """Send everything. Raises Refused."""
        async with (
            httpx.AsyncClient(base_url=self._api, timeout=30.0, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CLIENTS):
                group.create_task(self._client(client))

    async def _client(self, client: httpx.AsyncClient) -> None:
        while self._next < len(self._plan):
            if self._next >= self.gate.allowed:
                await self.gate.passed(self._next)
                continue
            number, self._next = self._next, self._next + 1
            sender, document = self._plan[number]
            self.sent.append(await self._send(client, sender, document))

    async def _send(self, client: httpx.AsyncClient, sender: str, document: Document) -> Sent:
        token = tokens.issue(self._secret, sender, self._tenant, ["sender"], TOKEN_SECONDS)
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"{self._tenant}-{document.index}"}
        sent = Sent(
            document.index, sender, document.reference, document.sha256, document.broken, None, time.time(), None
        )
        answer, refusals = await until_accepted(
            lambda: self._post(client, document, headers), HTTPStatus.ACCEPTED, f"document {document.index}"
        )
        self.repeats += len(refusals)
        told = ", ".join(map(str, refusals)) or None
        return replace(sent, id=str(answer.json()["id"]), accepted_at=time.time(), error=told)

    async def _post(self, client: httpx.AsyncClient, document: Document, headers: dict[str, str]) -> httpx.Response:
        if document.kind == "pdf":
            file = (f"{document.index}.pdf", document.content, "application/pdf")
            return await client.post("/api/documents", files={"file": file}, headers=headers)
        page = f"{self._pages}/{document.index}.html"
        body = {"text": document.content.decode()} if document.kind == "text" else {"url": page}
        return await client.post("/api/documents", json=body, headers=headers)
