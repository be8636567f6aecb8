"""The settings of both processes of the gateway."""

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from schemas.retention import RetentionSettings


class GatewaySettings(RetentionSettings):
    """Variables ``WORKBOT_<NAME>``; times in seconds unless named otherwise."""

    documents_url: str = Field(
        "http://127.0.0.1:3310", pattern=r"^http://[^/?#@]+$", description="Origin of the documents API."
    )
    notifications_url: str = Field(
        "http://127.0.0.1:3320", pattern=r"^http://[^/?#@]+$", description="Origin of the notifications API."
    )
    analytics_url: str = Field(
        "http://127.0.0.1:3330", pattern=r"^http://[^/?#@]+$", description="Origin of the analytics API."
    )
    workers: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Comma-separated origins of the workers that are asked for their queues."
    )
    upstream_timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="Longest silence of a service behind us before it answers, and within its answer: twice what is "
        "between two signs of life of an event stream (15 s). Longest time, too, that a client may leave an answer "
        "unread.",
    )
    operator_tenant: str | None = Field(
        None, min_length=1, description="Tenant whose admins see dead letters that no tenant owns; unset: nobody."
    )
    dead_letter_group: str = Field(
        "gateway.dead-letters",
        min_length=1,
        description="Consumer group of the dead-letter projector; a new name reads every dead letter anew.",
    )

    letter_retention_days: float = Field(
        30.0,
        gt=0,
        description="How long a dead letter that was sent back or discarded stays to be seen; then it is cleared.",
    )

    @field_validator("workers", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().rstrip("/") for part in value.split(",") if part.strip())
        return value

    @field_validator("workers")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for worker in value:
            if not worker.startswith(("http://", "https://")):
                raise ValueError(f"{worker!r} is not an address such as http://127.0.0.1:3360")
        return value
