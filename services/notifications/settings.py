"""The settings of the notifications service."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.retention import RetentionSettings
from web.outbound import AllowList


class NotificationsSettings(RetentionSettings):
    """Variables ``WORKBOT_<NAME>``; times in seconds unless named otherwise."""

    notification_retention_days: float = Field(
        90.0, gt=0, description="How long a notification stays, and what became of its deliveries."
    )
    subscription_limit: int = Field(20, ge=1, description="Most subscriptions of one person or team.")
    public_url: str = Field(
        "http://127.0.0.1:3300",
        pattern=r"^https?://[^/?#@]+$",
        description="The gateway's origin as people reach it: links that leave the house begin with it.",
    )

    webhook_timeout_seconds: float = Field(10.0, gt=0, description="Longest time a webhook may take to answer.")
    webhook_allow: AllowList = Field(
        frozenset(), description="Comma-separated host:port that webhooks may go to although private."
    )

    smtp_host: str | None = Field(None, min_length=1, description="Mail server; unset: nothing is sent by e-mail.")
    smtp_port: int = Field(587, gt=0, le=65535, description="Its port.")
    smtp_tls: Literal["none", "starttls", "tls"] = Field(
        "starttls", description="Whether the connection is encrypted: not at all, after STARTTLS, or from its start."
    )
    smtp_user: str | None = Field(None, min_length=1, description="User name there; unset: no sign-in.")
    smtp_password_file: Path | None = Field(None, description="File with that user's password.")
    smtp_from: str | None = Field(
        None, pattern=r"^[!-?A-~]+@[a-zA-Z0-9.-]+$", description="Address that e-mails come from."
    )
    smtp_timeout_seconds: float = Field(15.0, gt=0, description="Longest wait for one answer of the mail server.")

    @model_validator(mode="after")
    def _mail_is_possible(self) -> Self:
        if self.smtp_host is not None and self.smtp_from is None:
            raise ValueError("smtp_host needs smtp_from, the address that e-mails come from")
        if (self.smtp_user is None) != (self.smtp_password_file is None):
            raise ValueError("smtp_user and smtp_password_file are set together or not at all")
        if self.smtp_user is not None and self.smtp_tls == "none":
            raise ValueError("smtp_user needs smtp_tls to be starttls or tls: a password is not sent in the clear")
        return self
