"""The workers' own view of their queues, asked of each and added up."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import httpx
import structlog
from pydantic import TypeAdapter, ValidationError

from messaging.queues import MOST_SENDERS, Queue, SenderQueue

log = structlog.get_logger(__name__)

PATH = "/api/queues"
ANSWER_SECONDS = 2.0
ANSWER_BYTES = 4 * 2**20

_QUEUES = TypeAdapter(dict[str, list[Queue]])


@dataclass(frozen=True, slots=True)
class Answer:
    """What one worker said; `silent` is why it said nothing that can be used."""

    address: str
    queues: list[Queue] = field(default_factory=list)
    silent: str | None = None


class Workers:
    """The workers of this house, by their addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._client = httpx.AsyncClient(
            timeout=ANSWER_SECONDS, trust_env=False, limits=httpx.Limits(keepalive_expiry=3.0)
        )

    async def ask(self, authorization: str) -> list[Answer]:
        """All at once, each as the caller."""
        return await asyncio.gather(*(self._ask(address, authorization) for address in self._addresses))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, address: str, authorization: str) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                body = await self._get(address, authorization)
            return Answer(address, _QUEUES.validate_json(body).get("queues", []))
        except TimeoutError:
            silent = f"no answer within {ANSWER_SECONDS:g} s"
        except httpx.HTTPStatusError as error:
            silent = f"it answered {error.response.status_code}"
        except httpx.HTTPError as error:
            silent = f"it cannot be reached: {type(error).__name__}"
        except ValidationError:
            silent = "its answer cannot be read"
        log.warning("worker.silent", address=address, why=silent)
        return Answer(address, silent=silent)

    async def _get(self, address: str, authorization: str) -> bytes:
        body = bytearray()
        headers = {"Authorization": authorization}
        async with self._client.stream("GET", address + PATH, headers=headers) as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > ANSWER_BYTES:
                    raise httpx.DecodingError("the answer is too long")
        return bytes(body)


def add_up(queues: Iterable[Queue]) -> list[Queue]:
    """Pure: one queue per consumer, of several processes'."""
    by_consumer = sorted(queues, key=lambda queue: queue.consumer)
    return [_sum(consumer, list(parts)) for consumer, parts in groupby(by_consumer, key=lambda queue: queue.consumer)]


def _sum(consumer: str, parts: Sequence[Queue]) -> Queue:
    senders: dict[str, SenderQueue] = {}
    for part in (sender for queue in parts for sender in queue.senders):
        total = senders.setdefault(part.sender, SenderQueue(part.sender))
        total.waiting += part.waiting
        total.running += part.running
        total.parked += part.parked
        total.delayed += part.delayed
    ordered = sorted(senders.values(), key=lambda sender: (-sender.jobs, sender.sender))
    return Queue(
        consumer=consumer,
        slots=sum(queue.slots for queue in parts),
        in_use=sum(queue.in_use for queue in parts),
        held_by=sorted({holder for queue in parts for holder in queue.held_by}),
        waiting=sum(queue.waiting for queue in parts),
        running=sum(queue.running for queue in parts),
        parked=sum(queue.parked for queue in parts),
        delayed=sum(queue.delayed for queue in parts),
        senders=ordered[:MOST_SENDERS],
        left_out=sum(queue.left_out for queue in parts) + max(0, len(ordered) - MOST_SENDERS),
    )
