"""Gathers the evidence of a run from where it is, and waits until it is complete or clearly never will be."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest import store, trail
from loadtest.evidence import FAILED, READ, Ledger
from loadtest.probe import Measured
from loadtest.provider import ProviderProcess
from loadtest.records import Evidence, Sent
from messaging.policy import Subscription
from schemas.events import DocumentRead

SETTLE_SECONDS = 15.0
"""How long after the last document's end its records and events may take to arrive where they are read."""
_PAUSE_SECONDS = 0.5
_LEEWAY_SECONDS = 5.0
"""Kafka is read from this long before the run: a record's time is stamped by its producer."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How many documents of each sender have ended, and how many are on a slot."""

    ended: dict[str, int]
    reading: dict[str, int]


async def progress(conn: store.Connection, tenant: str) -> Progress:
    """Where the tenant's documents are now."""
    ended: dict[str, int] = {}
    reading: dict[str, int] = {}
    for (sender, status), count in (await store.counts(conn, tenant)).items():
        if status in READ | FAILED:
            ended[sender] = ended.get(sender, 0) + count
        elif status == "reading":
            reading[sender] = count
    return Progress(ended, reading)


class Collector:
    """Knows where one run's evidence is."""

    def __init__(
        self,
        conn: store.Connection,
        provider: ProviderProcess,
        *,
        kafka: str,
        subscription: Subscription,
        tenant: str,
        since: float,
    ) -> None:
        self._conn, self._provider = conn, provider
        self._kafka, self._subscription = kafka, subscription
        self._tenant, self._since = tenant, since - _LEEWAY_SECONDS

    async def gather(self, sent: Sequence[Sent], probed: Measured) -> Evidence:
        """The evidence as soon as it accounts for every document, or as it is after `SETTLE_SECONDS`."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            evidence = await self._now(sent, probed)
            complete = not Ledger(evidence, self._subscription.backoff.attempts).lost()
            if complete or time.monotonic() >= deadline:
                return evidence
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _now(self, sent: Sequence[Sent], probed: Measured) -> Evidence:
        dead_letters = self._subscription.dead_letter_topic
        seen = await asyncio.to_thread(
            trail.read, self._kafka, [DocumentRead.TOPIC, dead_letters], self._tenant, self._since
        )
        return Evidence(
            sent=list(sent),
            stored=await store.documents(self._conn, self._tenant),
            runs=await store.runs(self._conn, self._tenant, self._subscription.consumer),
            calls=await self._provider.records(),
            events=[record for record in seen if record.topic != dead_letters],
            dead_letters=[record for record in seen if record.topic == dead_letters],
            probe_ms=probed.milliseconds,
            probe_errors=probed.errors,
        )
