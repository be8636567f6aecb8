"""What may be asked for in a request, whichever way it comes."""

import hashlib
import unicodedata
from dataclasses import dataclass

from web.problems import BadInput, Problem, bad_input

MAX_TITLE = 200
MAX_BODY = 20_000
MAX_TEAM = 100
MAX_TEAM_BYTES = 190
"""Of UTF-8: a team's notifications travel under the key `<tenant>:team:<team>`, and a part of a key has 200 bytes."""

_LAYOUT = frozenset("\t\n\r")
"""Control characters that a text of several lines may hold."""
_BREAKS = ("Zl", "Zp")


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, and of which team, as it will be kept. Made by `parse`."""

    title: str
    body: str
    team: str

    @property
    def fingerprint(self) -> bytes:
        """What makes two asks the same."""
        return hashlib.sha256("\0".join((self.team, self.title, self.body)).encode()).digest()


def parse(title: str, body: str, team: str) -> Ask:
    """Pure: the ask, trimmed. Raises a 422 problem naming each field at fault and what to send instead.

    title   one line, 1 to 200 characters
    body    up to 20,000 characters; tabs and line breaks are its only control characters
    team    1 to 100 printable characters, at most 190 bytes of UTF-8, no colon (it divides the parts of a key);
            compared as written, so "IT" and "it" are two teams
    """
    bad = BadInput()
    with bad:
        title = _title(title.strip())
    with bad:
        body = _body(body)
    with bad:
        team = _team(team.strip())
    bad.tell()
    return Ask(title, body, team)


def _title(title: str) -> str:
    if not title:
        raise bad_input("title", "empty", "The title is empty; say in one line what is wanted.")
    if len(title) > MAX_TITLE:
        raise _too_long("title", MAX_TITLE, "Put the rest into the body.")
    if any(_control(character) or unicodedata.category(character) in _BREAKS for character in title):
        raise bad_input(
            "title", "bad-character", "The title holds a line break or a control character; send it as one line."
        )
    return title


def _body(body: str) -> str:
    if len(body) > MAX_BODY:
        raise _too_long("body", MAX_BODY, "Send a longer text as a document.")
    if any(_control(character) and character not in _LAYOUT for character in body):
        raise bad_input(
            "body", "bad-character", "The body holds a control character; of those send only tabs and line breaks."
        )
    return body


def _team(team: str) -> str:
    if not team:
        raise bad_input("team", "empty", "The team is empty; name the team that is to answer.")
    if len(team) > MAX_TEAM:
        raise _too_long("team", MAX_TEAM, "Name the team by a shorter name.")
    if (size := len(team.encode("utf-8", "replace"))) > MAX_TEAM_BYTES:
        detail = f"At most {MAX_TEAM_BYTES} bytes of UTF-8 are taken, and this name has {size}; send a shorter one."
        raise bad_input("team", "too-long", detail)
    if not team.isprintable() or ":" in team:
        raise bad_input(
            "team",
            "bad-character",
            "The team's name holds a colon or a character that is not printable; send it without.",
        )
    return team


def _control(character: str) -> bool:
    # Cs: half a character, which UTF-8 cannot express.
    return unicodedata.category(character) in ("Cc", "Cs")


def _too_long(field: str, limit: int, remedy: str) -> Problem:
    return bad_input(field, "too-long", f"At most {limit:,} characters are taken. {remedy}")
