"""Sends the documents through the real API: the noisy sender's first, then everyone else's at once."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import httpx

from loadtest.corpus import Document
from loadtest.records import Sent
from loadtest.scenario import Scenario
from web import tokens

CONNECTIONS = {True: 2, False: 1}
"""How many POSTs a sender has under way at once: the noisy one (True), and each of the others."""
_TRIES = 10
_MAX_WAIT_SECONDS = 10.0
_TOKEN_SECONDS = 6 * 3600.0
_RETRYABLE = frozenset({429, 500, 502, 503, 504})

Plan = Sequence[tuple[str, Document]]


class Driver:
    """Sends one run's plan. `sent` grows as documents are accepted or given up, in the order of their answers."""

    def __init__(self, client: httpx.AsyncClient, scenario: Scenario, run: str, pages: str) -> None:
        self._client, self._scenario, self._run, self._pages = client, scenario, run, pages
        self.sent: list[Sent] = []

    async def send(self, plan: Plan, secret: str, tenant: str, on_sent: Callable[[Sent], None]) -> None:
        """Send everything. A document that is not accepted is recorded with its error, never raised."""
        noisy, quiet = self._scenario.noisy, self._scenario.quiet
        by_sender = {
            sender: [document for whose, document in plan if whose == sender] for sender in self._scenario.senders
        }
        headers = {
            sender: {"Authorization": f"Bearer {tokens.issue(secret, sender, tenant, ['sender'], _TOKEN_SECONDS)}"}
            for sender in self._scenario.senders
        }
        flooded = asyncio.Event()

        async def send_all(sender: str, waiting: list[Document]) -> None:
            while waiting:
                document = waiting.pop(0)
                sending = asyncio.ensure_future(self._send(sender, document, headers[sender]))
                if sender == noisy and not waiting:
                    flooded.set()
                sent = await sending
                self.sent.append(sent)
                on_sent(sent)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS[True]):
                group.create_task(send_all(noisy, by_sender[noisy]))
            await flooded.wait()
            for sender in quiet:
                for _ in range(CONNECTIONS[False]):
                    group.create_task(send_all(sender, by_sender[sender]))

    async def _send(self, sender: str, document: Document, headers: dict[str, str]) -> Sent:
        # The key makes a repeat after a lost answer harmless: the API answers with the first one's id.
        headers = {**headers, "Idempotency-Key": f"{self._run}-{document.index}"}
        sent = Sent(
            document.index, sender, document.reference, document.sha256, document.broken, None, time.time(), None
        )
        error = ""
        for number in range(_TRIES):
            wait = min(_MAX_WAIT_SECONDS, 0.1 * 2**number)
            try:
                response = await self._post(document, headers)
            except httpx.TransportError as fault:
                error = f"{type(fault).__name__}: {fault}"
            else:
                if response.status_code == httpx.codes.ACCEPTED:
                    return replace(sent, id=str(response.json()["id"]), accepted_at=time.time())
                error = f"{response.status_code} {response.text[:200]}"
                if response.status_code not in _RETRYABLE:
                    break
                wait = _asked_wait(response, wait)
            await asyncio.sleep(wait)
        return replace(sent, error=error)

    async def _post(self, document: Document, headers: dict[str, str]) -> httpx.Response:
        if document.kind == "pdf":
            file = (f"{document.index}.pdf", document.content, "application/pdf")
            return await self._client.post("/api/documents", files={"file": file}, headers=headers)
        body = {"text": document.content.decode()} if document.kind == "text" else {"url": self._page(document)}
        return await self._client.post("/api/documents", json=body, headers=headers)

    def _page(self, document: Document) -> str:
        return f"{self._pages}/{self._scenario.seed}/{document.index}.html"


def _asked_wait(response: httpx.Response, otherwise: float) -> float:
    asked = response.headers.get("Retry-After", "")
    return min(_MAX_WAIT_SECONDS, float(asked)) if asked.isdigit() else otherwise
