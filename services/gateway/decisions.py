"""What staff may decide about dead letters: sent back to their consumer, or discarded; one, or many by filter."""

from http import HTTPStatus
from uuid import UUID

from messaging.database import Pool
from services.gateway.records import Filter, Listed, Sight, State
from services.gateway.store import staff
from web.problems import Problem, not_found

BATCH = 1000
"""Letters decided on in one statement."""


class Decisions:
    """Takes them, for one set of consumers. `consumers` are (source topic, consumer)."""

    def __init__(self, pool: Pool, consumers: staff.Consumers) -> None:
        self._pool = pool
        self._consumers = consumers

    async def send_back(self, sight: Sight, letter_id: UUID, who: str) -> Listed:
        """Once: the next is told who was first. The worker's sender does the rest. Raises a 404 or 409 problem."""
        async with self._pool.connection() as conn:
            letter = await staff.send_back(conn, sight, letter_id, who, self._consumers)
            if letter is not None:
                return letter
            known = await staff.get(conn, sight, letter_id)
        raise self._refusal(known)

    async def discard(self, sight: Sight, letter_id: UUID, who: str) -> Listed:
        """Once, as above."""
        async with self._pool.connection() as conn:
            letter = await staff.discard(conn, sight, letter_id, who)
            if letter is not None:
                return letter
            known = await staff.get(conn, sight, letter_id)
        raise self._refusal(known)

    async def many(self, sight: Sight, wanted: Filter, decision: State, who: str) -> int:
        """Decide on every open letter that is meant and was here when this was called; returns how many.

        `decision` is 'sending' or 'discarded'. In batches, each final by itself: repeat a call that broke off.
        """
        decided = 0
        async with self._pool.connection() as conn:
            asked_at = await staff.clock(conn)
            while batch := await staff.decide_many(
                conn, sight, wanted, decision, who, self._consumers, asked_at=asked_at, limit=BATCH
            ):
                decided += batch
        return decided

    def _refusal(self, known: Listed | None) -> Problem:
        if known is None:
            return not_found("dead letter")
        if known.state != "open":
            done, kind = ("discarded", "discarded") if known.state == "discarded" else ("sent back", "already-sent")
            at = f"{known.decided_at:%Y-%m-%d %H:%M:%S} UTC" if known.decided_at else "a moment ago"
            return Problem(HTTPStatus.CONFLICT, kind, f"This letter was {done} by {known.decided_by} at {at}.")
        if (known.source, known.consumer) not in self._consumers:
            detail = f"{known.source} has no consumer {known.consumer} any more; nobody would read it."
            return Problem(HTTPStatus.CONFLICT, "no-such-consumer", detail)
        detail = "Its headers cannot be read, so it cannot be sent back as it was. It can be discarded."
        return Problem(HTTPStatus.CONFLICT, "unreadable-headers", detail)
