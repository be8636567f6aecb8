"""How long a service keeps what it needs to know of Kafka's records, held against how long Kafka keeps those."""

from typing import Self

from pydantic import model_validator

from messaging.upkeep import UpkeepSettings
from schemas import periods, topics

DEAD_LETTERS_GONE_DAYS = periods.longest_days(periods.DEAD_LETTER_DAYS * periods.DAY_MS)
"""A dead letter that was written so many days ago lies on no topic any more."""


class RetentionSettings(UpkeepSettings):
    """UpkeepSettings that know the topics: refused when the ledger would forget a job whose record may come again."""

    @model_validator(mode="after")
    def _ledger_outlives_topics(self) -> Self:
        longest, name = max(topics.load().kept_days())
        if self.ledger_retention_days <= longest:
            raise ValueError(
                f"ledger_retention_days must be longer than {longest:.4g}, which is how long {name} may still have a "
                "record: one that comes again after the ledger forgot it would have its effect twice"
            )
        return self

    @model_validator(mode="after")
    def _erasures_outlive_topics(self) -> Self:
        if self.erasure_retention_days <= DEAD_LETTERS_GONE_DAYS:
            raise ValueError(
                f"erasure_retention_days must be longer than {DEAD_LETTERS_GONE_DAYS:.4g}, which is how long a dead "
                "letter may lie on its topic: one that is read after the erasure was forgotten would bring data back"
            )
        return self
