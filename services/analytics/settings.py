"""The settings of the analytics service."""

from pathlib import Path

from pydantic import Field

from messaging.settings import ProcessSettings


class AnalyticsSettings(ProcessSettings):
    """Variables ``WORKBOT_<NAME>``; times in seconds."""

    tables_dir: Path = Field(description="Folder of the tables on disk; only this service reads or writes it.")
