"""Settings: one typed class per process, read from the environment once, at start.

This is the only file that may read the environment. Every variable begins with ``WORKBOT_``.
"""

import os
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from messaging.errors import Misconfigured


class ProcessSettings(BaseSettings):
    """What every process of the layer needs. Services subclass it and add their own fields."""

    model_config = SettingsConfigDict(env_prefix="WORKBOT_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address the HTTP face listens on; loopback by default.")
    port: int = Field(0, ge=0, le=65535, description="Port of the HTTP face; 0 lets the system choose.")
    kafka_bootstrap: str = Field("127.0.0.1:19092", description="Kafka's bootstrap servers.")
    registry_url: str = Field(
        "http://127.0.0.1:18081/apis/ccompat/v7", description="Schema registry, Confluent API, base address."
    )
    database_url: str = Field(description="This service's database as a libpq URI, without the password.")
    database_password_file: Path | None = Field(None, description="File that holds the role's password.")
    database_pool: int = Field(10, ge=2, description="Most connections in this process's pool.")
    token_secret_file: Path | None = Field(None, description="File with the key that signs tokens.")
    body_idle_seconds: float = Field(30.0, gt=0, description="Longest wait for the next piece of a request's body.")
    body_grace_seconds: float = Field(
        60.0, gt=0, description="How long a request's body may take, whatever its size."
    )
    body_bytes_per_second: float = Field(
        4096.0, gt=0, description="What a body must bring on average when it takes longer than that."
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    drain_seconds: float = Field(10.0, gt=0, description="How long running work may finish after SIGTERM.")


S = TypeVar("S", bound=BaseSettings)

_FIELD = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")
"""What may be a field's name in a sentence: names of one word could be just that."""


def load(kind: type[S]) -> S:
    """Read the settings of one process. Raises Misconfigured naming each variable at fault and why."""
    try:
        return kind()
    except ValidationError as error:
        faults = "; ".join(_told(kind, fault["loc"], fault["msg"]) for fault in error.errors())
        raise Misconfigured(f"Settings are missing or wrong: {faults}") from error


def variables(kind: type[BaseSettings]) -> dict[str, str]:
    """The environment variable of each field."""
    prefix = kind.model_config.get("env_prefix", "")
    return {name: f"{prefix}{name}".upper() for name in kind.model_fields}


def _told(kind: type[BaseSettings], place: tuple[Any, ...], message: str) -> str:
    """One fault, with variables where a validator names fields. A fault between fields has no place of its own."""
    known = variables(kind)
    said = _FIELD.sub(lambda word: known.get(word[0], word[0]), message.removeprefix("Value error, "))
    return f"{known.get(str(place[0]), str(place[0]))}: {said}" if place else said


def inherited_environment() -> dict[str, str]:
    """What a child process gets from ours: everything but our own variables, which its parent sets anew."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WORKBOT_")}


def given_environment() -> dict[str, str]:
    """Our own variables as this process was given them, for a parent that hands some of them on."""
    return {name: value for name, value in os.environ.items() if name.startswith("WORKBOT_")}


def read_secret(path: Path | None, purpose: str) -> str:
    """The secret in a file, without its line end. Raises Misconfigured when there is none."""
    if path is None:
        raise Misconfigured(f"No file is set for {purpose}.")
    try:
        secret = path.read_text("utf-8").strip()
    except OSError as error:
        raise Misconfigured(f"The file for {purpose} cannot be read: {path}: {error.strerror}.") from error
    if not secret:
        raise Misconfigured(f"The file for {purpose} is empty: {path.name}")
    return secret
