"""Where the API hands its requests in: what comes while others are being written is written together, next."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import psycopg

from messaging.batcher import Batcher, Ways
from messaging.codec import Codec
from messaging.database import Pool, is_outage
from messaging.errors import NoTurn, Outage
from messaging.message import Key
from services.gateway.asks import Ask
from services.gateway.records import OnceKey
from services.gateway.requests import Answer, Draft, Receipt, create_requests, draft, receipt

MOST = 64
"""Requests in one statement. Each has at most 20,000 characters, which it says twice: in its row and in its event."""

WAIT_SECONDS = 10.0
"""How long one waits for a connection, or for its turn to have one."""

WAYS = Ways(patience=0.05, most=4, wait=WAIT_SECONDS)
"""A statement may wait for another transaction under the same idempotency key, which is no reason for later ones to
wait."""


class _Handed(NamedTuple):
    draft: Draft
    until: float
    """When it has waited long enough for a connection, by the monotonic clock."""


class Desk:
    """Files requests of many callers. `pool` is in autocommit; `codec` was prepared to write RequestCreated."""

    def __init__(self, pool: Pool, codec: Codec) -> None:
        self._pool = pool
        self._codec = codec
        # Apart, since those without a key wait for nobody.
        self._keyed: Batcher[_Handed, Answer] = Batcher(self._file, MOST, WAYS)
        self._keyless: Batcher[_Handed, Answer] = Batcher(self._file, MOST, WAYS)
        self._under_way: dict[OnceKey, asyncio.Future[None]] = {}

    async def file(self, whose: Key, ask: Ask, idempotency_key: str | None) -> Receipt:
        """As `create_request`, committed. Raises Outage, too, when its turn does not come: then nothing was filed."""
        handed = _Handed(
            draft(self._codec, whose, ask, idempotency_key=idempotency_key), time.monotonic() + WAIT_SECONDS
        )
        once = handed.draft.request.once
        try:
            answer = await (self._keyless.submit(handed) if once is None else self._file_once(once, handed))
        except NoTurn as error:
            raise Outage("The database takes no more requests at the moment.", "database") from error
        return receipt(answer)

    async def _file_once(self, once: OnceKey, handed: _Handed) -> Answer:
        """Not while the last try under the key is under way: one that hangs would take way after way with it."""
        before = self._under_way.get(once)
        if before is not None:
            await asyncio.wait([before], timeout=handed.until - time.monotonic())
            if not before.done():
                raise NoTurn("An earlier try under the same key hangs.")
        mine = self._under_way[once] = asyncio.get_running_loop().create_future()
        try:
            return await self._keyed.submit(handed)
        finally:
            mine.set_result(None)
            if self._under_way.get(once) is mine:
                del self._under_way[once]

    async def _file(self, handed: Sequence[_Handed]) -> list[Answer]:
        drafts = [each.draft for each in handed]
        # Of the oldest: it has waited for its turn, too.
        patience = max(0.0, handed[0].until - time.monotonic())
        async with self._pool.connection(patience) as conn:
            answers = await create_requests(conn, drafts)
            if len(drafts) > 1:
                for place, answer in enumerate(answers):
                    if isinstance(answer, psycopg.Error) and not is_outage(answer):
                        # It may be the fault of one of them, which the others need not share.
                        [answers[place]] = await create_requests(conn, [drafts[place]])
            return answers
