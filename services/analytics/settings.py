"""The settings of the analytics service."""

from pathlib import Path

from pydantic import Field

from schemas.retention import RetentionSettings
from services.analytics.counting import SECONDS, Keep


class AnalyticsSettings(RetentionSettings):
    """Variables ``WORKBOT_<NAME>``; times in seconds unless their name says otherwise."""

    tables_dir: Path = Field(description="Folder of the tables on disk; only this service reads or writes it.")
    minutes_kept_days: float = Field(2, gt=0, description="How long counts by the minute are kept.")
    hours_kept_days: float = Field(60, gt=0, description="How long counts by the hour are kept.")
    days_kept_days: float = Field(800, gt=0, description="How long counts by the day are kept.")

    def keep(self) -> Keep:
        """How long each window's buckets are kept."""
        day = SECONDS["day"]
        return Keep(self.minutes_kept_days * day, self.hours_kept_days * day, self.days_kept_days * day)
