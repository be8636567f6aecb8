"""The settings of the notifications service."""

from messaging.settings import ProcessSettings


class NotificationsSettings(ProcessSettings):
    """Variables ``WORKBOT_<NAME>``; times in seconds."""
