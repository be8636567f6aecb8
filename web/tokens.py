"""Bearer tokens (JWT, HS256): who is asking, for which tenant, in which roles."""

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import jwt
from fastapi import Request
from fastapi.security import HTTPBearer

from messaging.errors import Misconfigured
from messaging.message import MAX_KEY_PART
from web.problems import Problem

ALGORITHM = "HS256"
MIN_SECRET_BYTES = 32
"""RFC 7518, 3.2: a key at least as long as the hash."""
ROLES = frozenset({"sender", "reviewer", "viewer", "agent", "admin"})
STAFF = ROLES - {"sender"}


TEAM = "team:"
"""What a team's name is given where it stands in a person's place, so no person's name may begin with it."""


class InvalidToken(Exception):
    """The token proves nothing: forged, expired, or without the claims we need."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking. `session` names the sign-in, so that it can be ended; `expires_at`, in Unix seconds, is when the
    token ends: what goes on for longer than a call must end then."""

    sub: str
    tenant: str
    roles: frozenset[str]
    session: str
    expires_at: int

    @property
    def staff(self) -> bool:
        """Works for the tenant, and so sees all that is the tenant's."""
        return not self.roles.isdisjoint(STAFF)


def issue(secret: str, sub: str, tenant: str, roles: Iterable[str], ttl: float) -> str:
    """A token for `ttl` seconds. Raises ValueError for a name or role that `verify` would refuse."""
    now = int(time.time())
    identity = _identity(sub, tenant, list(roles), secrets.token_urlsafe(12), now + int(ttl))
    claims: dict[str, Any] = {
        "sub": identity.sub,
        "tenant": identity.tenant,
        "roles": sorted(identity.roles),
        "sid": identity.session,
        "iat": now,
        "exp": identity.expires_at,
    }
    return jwt.encode(claims, _checked(secret), algorithm=ALGORITHM)


def verify(secret: str, token: str) -> Identity:
    """Who the token speaks for. Raises InvalidToken with a reason that is safe to show."""
    try:
        claims = jwt.decode(
            token, _checked(secret), algorithms=[ALGORITHM], options={"require": ["sub", "exp", "iat", "sid"]}
        )
    except jwt.ExpiredSignatureError:
        raise InvalidToken("The token has expired; `workbot token` prints a new one.") from None
    except jwt.InvalidTokenError:
        raise InvalidToken(
            "The token is not one of this stack's; `workbot token` prints one. If that printed this one, the address "
            "is another stack's: `workbot status` shows those of yours."
        ) from None
    try:
        return _identity(claims["sub"], claims.get("tenant"), claims.get("roles"), claims["sid"], int(claims["exp"]))
    except ValueError as error:
        raise InvalidToken(f"The token cannot be used: {error}.") from None


class Bearer(HTTPBearer):
    """A FastAPI dependency: the caller's identity from ``Authorization: Bearer``, or a 401 problem."""

    def __init__(self, secret: str) -> None:
        super().__init__(bearerFormat="JWT", auto_error=False)
        self._secret = _checked(secret)

    async def __call__(self, request: Request) -> Identity:  # type: ignore[override]
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unauthorized("Send a token: Authorization: Bearer <token>; `workbot token` prints one.", "Bearer")
        try:
            return verify(self._secret, token.strip())
        except InvalidToken as error:
            raise _unauthorized(str(error), 'Bearer error="invalid_token"') from None


def require(identity: Identity, allowed: Iterable[str]) -> None:
    """Raises a 403 problem unless the caller has one of the `allowed` roles."""
    wanted = frozenset(allowed)
    if identity.roles.isdisjoint(wanted):
        detail = f"This needs the role {' or '.join(sorted(wanted))}; `workbot token` prints a token with it."
        raise Problem(HTTPStatus.FORBIDDEN, "wrong-role", detail, field="Authorization")


def staff_only(what: str, field: str) -> Problem:
    """The 403 for whoever is not staff and asks for `what` by that field."""
    roles = ", ".join(sorted(STAFF))
    detail = f"Only staff ({roles}) may see {what}; `workbot token` prints a token with such a role."
    return Problem(HTTPStatus.FORBIDDEN, "wrong-role", detail, field=field)


def _identity(sub: object, tenant: object, roles: object, session: object, expires_at: int) -> Identity:
    for name, value in (("sub", sub), ("tenant", tenant), ("sid", session)):
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= MAX_KEY_PART:
            raise ValueError(f"{name} must be printable characters, 1 to {MAX_KEY_PART} bytes of UTF-8")
    if ":" in str(tenant):
        raise ValueError("tenant must not hold a colon: it ends at the first one in a key")
    if str(sub).startswith(TEAM):
        raise ValueError(f"sub must not begin with {TEAM!r}: that is how teams are named")
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles) or not roles:
        raise ValueError("roles must be a list of at least one role")
    unknown = set(roles) - ROLES
    if unknown:
        raise ValueError(f"unknown role {', '.join(sorted(unknown))}; there are {', '.join(sorted(ROLES))}")
    return Identity(str(sub), str(tenant), frozenset(roles), str(session), expires_at)


def _checked(secret: str) -> str:
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise Misconfigured(f"The key that signs tokens must be at least {MIN_SECRET_BYTES} bytes long.")
    return secret


def _unauthorized(detail: str, challenge: str) -> Problem:
    headers = {"WWW-Authenticate": challenge}
    return Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, field="Authorization", headers=headers)
