"""Timers that every service with an outbox or a ledger runs: what is past its time is cleared away.

Timers(pool, {**upkeep.timers(settings), "mine.clean": (upkeep.HOUR, clean)})
"""

from datetime import timedelta
from functools import partial
from typing import Self

from pydantic import Field, model_validator

from messaging import erasure, ledger, outbox
from messaging.database import Connection
from messaging.settings import ProcessSettings
from messaging.timers import Work

HOUR = 3600.0
DAY = 24 * HOUR

LEDGER_BATCH = 10_000
"""Rows of the ledger dropped in one run, and so in one transaction."""


class UpkeepSettings(ProcessSettings):
    """What the timers need to know. A process that runs them has these among its settings."""

    outbox_retention_days: float = Field(
        outbox.REPLAY_WINDOW / timedelta(days=1),
        gt=0,
        description="How long events stay in the outbox after Kafka confirmed them, to be sent again if need be.",
    )
    ledger_retention_days: float = Field(
        2 * outbox.REPLAY_WINDOW / timedelta(days=1),
        gt=0,
        description="How long the ledger remembers a settled job: longer than its record could come again, which is "
        "the outbox's time and then the topic's.",
    )

    erasure_retention_days: float = Field(
        120.0,
        gt=0,
        description="How long it is remembered that a sender was erased: longer than Kafka keeps anything of theirs.",
    )

    @model_validator(mode="after")
    def _ledger_outlives_outbox(self) -> Self:
        if self.ledger_retention_days < 2 * self.outbox_retention_days:
            raise ValueError(
                "ledger_retention_days must be at least twice outbox_retention_days: an event that is sent again "
                "after the ledger forgot it would have its effect twice"
            )
        return self


def timers(settings: UpkeepSettings) -> dict[str, tuple[float, Work]]:
    """Every timer by name: the seconds between two runs, and what a run does."""
    return {
        "outbox.maintain": (HOUR, partial(_maintain_outbox, timedelta(days=settings.outbox_retention_days))),
        "ledger.clean": (HOUR, partial(_clean_ledger, settings.ledger_retention_days * DAY)),
        "erasures.forget": (HOUR, partial(_forget_erasures, settings.erasure_retention_days * DAY)),
    }


async def _maintain_outbox(keep: timedelta, conn: Connection) -> None:
    await outbox.maintain(conn, keep)


async def _forget_erasures(keep_seconds: float, conn: Connection) -> None:
    await erasure.forget(conn, keep_seconds)


async def _clean_ledger(keep_seconds: float, conn: Connection) -> bool:
    return await ledger.clean(conn, keep_seconds, LEDGER_BATCH) == LEDGER_BATCH
