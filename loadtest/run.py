"""One load test from beginning to end."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psycopg
from rich.console import Console

from loadtest import collect, console, corpus, figures, promises, report, store
from loadtest.drive import Driver, Plan
from loadtest.faults import Terms
from loadtest.probe import PER_SECOND, Orders, Probe
from loadtest.provider import ProviderProcess
from loadtest.records import Evidence, Sent
from loadtest.scenario import Scenario
from loadtest.stage import Stage
from messaging.errors import MessagingError
from messaging.settings import read_secret
from schemas import topics
from schemas.events import DocumentReadingRequested
from web import tokens

READER = "reader"
STALLED_SECONDS = 120.0
"""With no document ending for this long, the run is over and what has not ended counts as lost."""
_OTHERS_SECONDS = 60.0
_WARM_UP_SECONDS = 60.0
_LOOK_SECONDS = 0.25
_KNOCK_SECONDS = 10.0
_TOKEN_SECONDS = 6 * 3600.0
_FIRST_PROBE_INDEX = 1_000_000
"""The probe's texts come from indexes no scenario reaches."""


class NotReading(MessagingError):
    """The documents service does not take documents, or takes them and does not read them."""


@dataclass(slots=True)
class Left:
    """What is under way, for the message when the run is broken off."""

    tenant: str = ""
    sent: list[Sent] = field(default_factory=list)
    ended: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run."""

    figures: figures.Figures
    promises: Sequence[promises.Promise]
    report: Path
    page: Path


class LoadTest:
    """One run of a scenario against a running stack. `left` may be read at any time, also after a failure."""

    def __init__(self, scenario: Scenario, stage: Stage, screen: Console, api: str | None = None) -> None:
        self._scenario, self._stage, self._screen = scenario, stage, screen
        self._api = (api or stage.endpoints.documents_api).rstrip("/")
        self._secret = read_secret(stage.endpoints.token_secret_file, "the key that signs tokens")
        self._subscription = topics.load().subscription(DocumentReadingRequested.TOPIC, READER)
        self.id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.tenant = f"load-{self.id}"
        self.left = Left(self.tenant)

    async def perform(self, out: Path) -> Result:
        """Send, watch, collect, report. Raises PartsNotReady and NotReading before it touches anything."""
        scenario = self._scenario
        await asyncio.to_thread(self._stage.check)
        await self._knock()
        plan = await asyncio.to_thread(lambda: list(scenario.plan()))
        terms = Terms(
            scenario.seed, scenario.mean, scenario.error_rate, scenario.timeout_rate, scenario.throttle_rate
        )
        async with (
            ProviderProcess(terms) as provider,
            self._stage.pointed_at(scenario, provider, self._say),
            await psycopg.AsyncConnection.connect(self._stage.database(), autocommit=True) as conn,
            httpx.AsyncClient(base_url=self._api, timeout=30.0, trust_env=False) as client,
        ):
            await self._wait_for_others(conn)
            orders = await self._warm_up(client, conn)
            evidence = await self._measure(plan, provider, conn, client, orders)
        found = figures.compute(
            scenario,
            evidence,
            run=self.id,
            tenant=self.tenant,
            backoff=self._subscription.backoff,
        )
        lending = None if scenario.lend else report.latest_lending(out, scenario)
        kept = promises.check(scenario, found, lending, attempts=self._subscription.backoff.attempts)
        return Result(found, kept, *report.write(out, scenario, evidence, found, kept, lending))

    async def _measure(
        self,
        plan: Plan,
        provider: ProviderProcess,
        conn: store.Connection,
        client: httpx.AsyncClient,
        orders: Orders,
    ) -> Evidence:
        begin = time.time()
        driver = Driver(client, self._scenario, self.id, provider.pages_url)
        self.left.sent = driver.sent
        probe = await Probe.start(orders)
        try:
            with console.board(self._screen, self._scenario) as board:
                sending = asyncio.create_task(
                    driver.send(plan, self._secret, self.tenant, lambda sent: board.sent(sent.sender))
                )
                try:
                    await self._watch(sending, driver.sent, conn, board)
                finally:
                    sending.cancel()
        finally:
            probed = await probe.stop()
        self._say("Collecting what the run left behind.")
        collector = collect.Collector(
            conn,
            provider,
            kafka=self._stage.endpoints.kafka,
            subscription=self._subscription,
            tenant=self.tenant,
            since=begin,
        )
        return await collector.gather(driver.sent, probed)

    async def _watch(
        self, sending: asyncio.Task[None], sent: Sequence[Sent], conn: store.Connection, board: console.Board
    ) -> None:
        """Until every accepted document has ended, or nothing moves any more."""
        moved = time.monotonic()
        while True:
            finished_sending = sending.done()
            now = await collect.progress(conn, self.tenant)
            board.show(now.ended, now.reading)
            ended = sum(now.ended.values())
            if ended != self.left.ended or not finished_sending:
                moved = time.monotonic()
            self.left.ended = ended
            if finished_sending:
                sending.result()
                if ended >= sum(one.id is not None for one in sent):
                    return
            if time.monotonic() - moved > STALLED_SECONDS:
                self._say(f"No document has ended for {STALLED_SECONDS:.0f} s; taking stock.")
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _knock(self) -> None:
        """See that somebody is at the address, whom the probe can ask, before anything is restarted on its behalf."""
        try:
            if httpx.URL(self._api).scheme == "https":
                raise NotReading(
                    f"{self._api} cannot be timed: the probe speaks plain HTTP. Give an http:// address."
                )
            async with httpx.AsyncClient(timeout=_KNOCK_SECONDS, trust_env=False) as client:
                await client.get(f"{self._api}/readyz")
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise NotReading(f"{self._api} does not answer: {error or type(error).__name__}") from error

    async def _warm_up(self, client: httpx.AsyncClient, conn: store.Connection) -> Orders:
        """Send the probe's documents, under a tenant of their own, and see them read before the clock starts."""
        tenant = f"{self.tenant}-probe"
        token = tokens.issue(self._secret, "probe", tenant, ["sender"], _TOKEN_SECONDS)
        posts = tuple(
            (f"{self.id}-probe-{number}", corpus.page(self._scenario.seed, _FIRST_PROBE_INDEX + number).decode())
            for number in range(PER_SECOND)
        )
        for key, text in posts:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
            answer = await client.post("/api/documents", json={"text": text}, headers=headers)
            if answer.status_code != httpx.codes.ACCEPTED:
                raise NotReading(f"{self._api} answered {answer.status_code} to a POST: {answer.text[:300]}")

        async def all_read() -> bool:
            return sum((await collect.progress(conn, tenant)).ended.values()) >= len(posts)

        if not await _within(_WARM_UP_SECONDS, all_read):
            raise NotReading(
                f"The documents service has not read {len(posts)} small texts within {_WARM_UP_SECONDS:.0f} s; "
                "see `workbot logs documents-worker`."
            )
        return Orders(self._api, token, posts)

    async def _wait_for_others(self, conn: store.Connection) -> None:
        """Documents of earlier runs, broken off perhaps, would hold slots that this run's senders are owed."""

        async def nobody() -> bool:
            return await store.others_unread(conn, [self.tenant]) == 0

        if not await nobody():
            self._say("Waiting for earlier documents to be read.")
            if not await _within(_OTHERS_SECONDS, nobody):
                self._say("[yellow]Earlier documents are still unread; they may take slots from this run.[/]")

    def _say(self, text: str) -> None:
        self._screen.print(text, style="dim", highlight=False)


async def _within(seconds: float, condition: Callable[[], Awaitable[bool]]) -> bool:
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True
