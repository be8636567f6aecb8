"""Pure: what may be handed in, and how a request says it."""

import hashlib
import json
import os.path
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from web import addresses
from web.problems import BadInput, Problem, bad_input

Kind = Literal["file", "text", "url"]
MAX_NAME = 255
MOST_UNKNOWN = 20
"""Unknown fields that are named at most."""

WAITING_RETRY_SECONDS = 60
ALLOWING = "WORKBOT_FETCH_ALLOW"
"""The setting behind `allow`."""

WAYS = 'a multipart "file", or JSON with "text" or "url"'


@dataclass(frozen=True, slots=True)
class Text:
    """A document sent as text, encoded."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """A document that stands at a web address."""

    url: str


def parse_json(body: bytes, allow: AbstractSet[str]) -> Text | Link:
    """What a JSON body hands in. Raises a 422 problem naming the field; `allow` is as in `addresses.parse`."""
    if not body.strip():
        raise empty_body()
    try:
        data = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise bad_input(
            "text", "not-utf-8", f"The body is not UTF-8 (at byte {error.start + 1}); encode it as UTF-8."
        ) from None
    except (ValueError, RecursionError):
        raise bad_input("body", "not-json", f"The body is not JSON. Send {WAYS}.") from None
    if not isinstance(data, dict):
        raise bad_input("body", "not-json", f"The body must be a JSON object. Send {WAYS}.")
    bad = BadInput()
    for name in sorted(data.keys() - {"text", "url"})[:MOST_UNKNOWN]:
        with bad:
            raise unknown_field(name)
    found: Text | Link | None = None
    with bad:
        if {"text", "url"} <= data.keys():
            raise two_kinds("url")
        if "text" in data:
            found = _text(data["text"])
        elif "url" in data:
            found = _link(data["url"], allow)
    bad.tell()
    if found is None:
        raise empty_body()
    return found


def file_name(sent: str) -> str | None:
    """A file's name for people to see: the last part of a path, printable, of bounded length."""
    name = os.path.basename(sent.replace("\\", "/"))
    name = "".join(character for character in name if character.isprintable()).strip()
    return name[:MAX_NAME] or None


def fingerprint(kind: Kind, content: bytes, name: str | None = None) -> bytes:
    """What makes two submissions the same: their kind, a digest of their content, and the file's name."""
    return hashlib.sha256(b"\0".join((kind.encode(), content, (name or "").encode("utf-8", "replace")))).digest()


def empty_body() -> Problem:
    """Nothing was handed in."""
    return bad_input("body", "empty", f"The body is empty. Send {WAYS}.")


def two_kinds(field: str) -> Problem:
    """More than one document was handed in at once."""
    return bad_input(field, "two-kinds", f"One document at a time: send {WAYS}, and only one of them.")


def not_a_part(field: str) -> Problem:
    """A multipart body holds what is said in JSON."""
    way = f'as JSON, {{"{field}": …}} with Content-Type: application/json'
    also = ", or as a file in the part" + ' named "file"' if field == "text" else ""
    return bad_input(field, "not-a-part", f"A multipart body takes a file only. Send the {field} {way}{also}.")


def unknown_field(field: str) -> Problem:
    """The body holds something we would otherwise silently ignore."""
    return bad_input(field[:80], "unknown-field", f"There is no such field. Send {WAYS}.")


def too_many_waiting(limit: int) -> Problem:
    """429: the sender's own documents have to be read first."""
    detail = f"{limit} of your documents wait to be read already; send more when some are done."
    return Problem(429, "too-many-waiting", detail, headers={"Retry-After": str(WAITING_RETRY_SECONDS)})


def too_large(field: str, limit: int) -> Problem:
    """413, sent as soon as it is known; the rest of the body is not read, so the connection ends with it."""
    size = f"{limit / 2**20:g} MiB" if limit >= 2**20 else f"{limit} bytes"
    remedy = "Split it or make it smaller." if field == "file" else "Send a longer text as a file."
    return Problem(
        413, "too-large", f"At most {size} are taken. {remedy}", field=field, headers={"Connection": "close"}
    )


def _text(value: object) -> Text:
    if not isinstance(value, str):
        raise bad_input("text", "bad-text", "The text must be a JSON string.")
    if not value.strip():
        raise bad_input("text", "empty", "The text is empty; send the words of the document.")
    if "\0" in value:
        raise bad_input("text", "bad-text", "The text holds binary data; send it as a file.")
    try:
        return Text(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise bad_input(
            "text", "not-utf-8", f"The text holds half a character (at {error.start + 1}) that UTF-8 cannot express."
        ) from None


def _link(value: object, allow: AbstractSet[str]) -> Link:
    if not isinstance(value, str) or not value.strip():
        raise bad_input("url", "bad-url", "Send the address of a page as a string, such as https://example.com/page.")
    url = value.strip()
    try:
        addresses.parse(url, allow)
    except addresses.Refused as refused:
        raise bad_input("url", "bad-url", addresses.told(refused, ALLOWING)) from None
    return Link(url)
