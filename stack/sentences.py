"""Pure: what the command says when something fails, in a sentence with what to do about it."""

import re
import shlex
from pathlib import Path

import httpx
import psycopg
from confluent_kafka import KafkaError, KafkaException

from messaging.database import is_outage
from messaging.errors import MessagingError, Outage, reason
from stack.control import DEFAULT_DATA_DIR

EXPECTED = (MessagingError, psycopg.Error, KafkaException, httpx.HTTPError, httpx.InvalidURL, OSError)
"""What a command may meet without a fault of ours: something is away, or not as it must be."""

_PARTS = {"database": "postgres", "kafka": "kafka", "registry": "registry"}
"""The part of the stack behind each resource of an Outage."""

_COMMAND = re.compile(r"`workbot (?!--data-dir)")


def told(error: Exception) -> str:
    """What to say of one of `EXPECTED`."""
    match error:
        case Outage() if error.resource in _PARTS:
            return f"{_ended(str(error))} {_look_at(_PARTS[error.resource])}"
        case MessagingError():
            return str(error)
        case psycopg.Error():
            said = reason(error)
            if "does not exist" in said or "password authentication failed" in said:
                return f"Postgres: {said}. `workbot migrate` brings roles and databases up to date."
            return f"Postgres: {said}. {_look_at('postgres')}" if is_outage(error) else f"Postgres: {said}."
        case KafkaException():
            return f"Kafka: {_of_kafka(error)}. {_look_at('kafka')}"
        case httpx.HTTPError() | httpx.InvalidURL():
            return f"No answer over HTTP: {reason(error)}. `workbot status` shows what is ready."
        case PermissionError():
            return f"{error.filename}: {error.strerror}. Does it belong to another user?"
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return f"{place}{error.strerror or reason(error)}."
    return reason(error)


def for_folder(text: str, data_dir: Path) -> str:
    """The same with every `workbot …` in it as it must be typed for the stack on this data directory."""
    if data_dir == DEFAULT_DATA_DIR:
        return text
    return _COMMAND.sub(lambda _: f"`workbot --data-dir {shlex.quote(str(data_dir))} ", text)


def _of_kafka(error: KafkaException) -> str:
    fault = error.args[0] if error.args else None
    # The client raises some of its own with a text, or with nothing.
    return fault.str() if isinstance(fault, KafkaError) else reason(error)


def _look_at(part: str) -> str:
    return f"`workbot status` shows how {part} is, `workbot start {part}` starts it."


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
