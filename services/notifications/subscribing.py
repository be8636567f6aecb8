"""Pure: whether somebody may be told at an address, and of what. Raises problems that name the field at fault."""

import re
import secrets
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from services.notifications.notices import DEFAULT_KINDS, KINDS, MAX_TEAM, MAX_TEAM_BYTES
from services.notifications.records import AudienceKind, Channel, Owner
from web import addresses
from web.problems import Problem, bad_input
from web.tokens import Identity, require

SECRET_PREFIX = "whsec_"  # noqa: S105 - says what it is, and is none
MAX_EMAIL = 254
ALLOWING = "WORKBOT_WEBHOOK_ALLOW"
"""The setting behind `allow`."""

TEAMS = frozenset({"admin"})
"""Who subscribes for a team."""

# What HTML takes for an address: no blanks, no lists, no line ends.
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+")


def owner(who: Identity, team: str | None) -> Owner:
    """Whose the subscription is: the caller's, or a team's, which takes an admin. A team is named as requests name
    it, or nothing would ever come of it."""
    if team is None:
        return Owner(who.tenant, "person", who.sub)
    require(who, TEAMS)
    team = team.strip()
    if not team or len(team) > MAX_TEAM or len(team.encode("utf-8", "replace")) > MAX_TEAM_BYTES:
        detail = f"Send the team's name: 1 to {MAX_TEAM} characters, at most {MAX_TEAM_BYTES} bytes of UTF-8."
        raise bad_input("team", "bad-team", detail)
    if not team.isprintable() or ":" in team:
        detail = "The team's name holds a colon or a character that is not printable; send it without."
        raise bad_input("team", "bad-team", detail)
    return Owner(who.tenant, "team", team)


def address(channel: Channel, given: str, allow: AbstractSet[str], *, mail: bool) -> str:
    """The address, if it can be used. `allow` is as in `addresses.parse`; `mail`: whether e-mail is set up."""
    given = given.strip()
    if channel == "email":
        if not mail:
            detail = "E-mail is not set up here: WORKBOT_SMTP_HOST names no mail server. Subscribe a webhook."
            raise Problem(409, "email-not-set-up", detail, field="channel")
        if len(given) > MAX_EMAIL or not _EMAIL.fullmatch(given):
            raise bad_input("address", "bad-address", "Send one e-mail address, such as ann@example.com.")
        return given
    if any(character.isspace() for character in given):
        # Two addresses, or one with a slip of the pen; the client would call something else than what is shown.
        raise bad_input("address", "bad-address", "Send one web address, with %20 for a blank.")
    try:
        addresses.parse(given, allow)
    except addresses.Refused as refused:
        raise bad_input("address", "bad-address", addresses.told(refused, ALLOWING)) from None
    return given


def kinds(of: AudienceKind, wanted: Sequence[str] | None) -> list[str]:
    """What such an owner is to be told of, in our order."""
    if wanted is None:
        return list(DEFAULT_KINDS[of])
    possible = KINDS[of]
    if not wanted or not set(wanted) <= set(possible):
        whose = "a person" if of == "person" else "a team"
        raise bad_input("kinds", "bad-kinds", f"For {whose} there are {', '.join(possible)}; send at least one.")
    return [kind for kind in possible if kind in wanted]


def secret(channel: Channel) -> str | None:
    """A fresh one for a webhook: 256 bits."""
    return SECRET_PREFIX + secrets.token_urlsafe(32) if channel == "webhook" else None


def too_many(limit: int) -> Problem:
    """409: others have to go first."""
    return Problem(409, "too-many-subscriptions", f"There are {limit} subscriptions already; delete one first.")


def subscribed_before() -> Problem:
    """409: the same address twice would be told everything twice."""
    detail = "There is a subscription for this address already; delete it to change it."
    return Problem(409, "already-subscribed", detail, field="address")
