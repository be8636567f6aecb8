"""Where the API hands its requests in: what comes while others are being written is written together, next."""

from collections.abc import Sequence

import psycopg

from messaging.batcher import Batcher, Ways
from messaging.codec import Codec
from messaging.database import Pool, is_outage
from messaging.errors import Outage
from messaging.message import Key
from services.gateway import requests
from services.gateway.asks import Ask
from services.gateway.requests import Answer, Draft, Receipt, create_requests

MOST = 64
"""Requests in one statement. Each has at most 20,000 characters, which it says twice: in its row and in its event."""

WAYS = Ways(patience=0.05, most=4, wait=10.0)
"""A statement may wait for another transaction under the same idempotency key, which is no reason for later ones to
wait. The last figure is the patience of the pool of connections."""


class Desk:
    """Files requests of many callers. `pool` is in autocommit; `codec` was prepared to write RequestCreated."""

    def __init__(self, pool: Pool, codec: Codec) -> None:
        self._pool = pool
        self._codec = codec
        # Apart, since those without a key wait for nobody.
        self._keyed: Batcher[Draft, Answer] = Batcher(self._file, MOST, WAYS)
        self._keyless: Batcher[Draft, Answer] = Batcher(self._file, MOST, WAYS)

    async def file(self, whose: Key, ask: Ask, idempotency_key: str | None) -> Receipt:
        """As `create_request`, committed. Raises Outage, too, when its turn does not come: then nothing was filed."""
        draft = requests.draft(self._codec, whose, ask, idempotency_key=idempotency_key)
        batcher = self._keyless if idempotency_key is None else self._keyed
        try:
            answer = await batcher.submit(draft)
        except TimeoutError as error:
            raise Outage("The database takes no more requests at the moment.", "database") from error
        return requests.receipt(answer)

    async def _file(self, drafts: Sequence[Draft]) -> list[Answer]:
        async with self._pool.connection() as conn:
            answers = await create_requests(conn, drafts)
            if len(drafts) > 1:
                for place, answer in enumerate(answers):
                    if isinstance(answer, psycopg.Error) and not is_outage(answer):
                        # It may be the fault of one of them, which the others need not share.
                        answers[place : place + 1] = await create_requests(conn, drafts[place : place + 1])
            return answers
