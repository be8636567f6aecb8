"""The Idempotency-Key header: a client that does not know what became of its request sends it again under one key."""

from typing import Any

from starlette.datastructures import Headers

from web.problems import Problem, bad_input

HEADER = "Idempotency-Key"
MAX_KEY = 255

REPLAYED = {"Idempotency-Replayed": "true"}
"""The header of an answer that an earlier request under the key has been given before."""

PARAMETER: dict[str, Any] = {
    "parameters": [{"name": HEADER, "in": "header", "schema": {"type": "string", "maxLength": MAX_KEY}}]
}
"""For a route's `openapi_extra`."""


def parse(headers: Headers) -> str | None:
    """The key as sent, None without one.

    Raises a 422 problem for one that is empty, too long, or not printable ASCII, and for two: which of them is meant
    nobody can tell.
    """
    given = headers.getlist(HEADER)
    if not given:
        return None
    key = given[0].strip()
    if len(given) > 1 or not 0 < len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        detail = f"Send the header once, with 1 to {MAX_KEY} printable ASCII characters, or not at all."
        raise bad_input(HEADER, "bad-idempotency-key", detail)
    return key


def reused(what: str) -> Problem:
    """422: the key was used before, for something else; `what` is what each key stands for one of."""
    detail = f"This key was used before with another body. Use a new key for a new {what}."
    return bad_input(HEADER, "idempotency-key-reused", detail)
