"""Tokens: what is issued is understood, and nothing else is."""

import time

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.errors import Misconfigured
from messaging.message import MAX_KEY_PART
from web import tokens
from web.tokens import InvalidToken

SECRET = "a secret that is long enough for any of the algorithms tried here, by far"


def claims(**changes: object) -> dict[str, object]:
    now = int(time.time())
    whole = {"sub": "ann", "tenant": "acme", "roles": ["sender"], "sid": "s1", "iat": now, "exp": now + 60}
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def encoded(secret: str = SECRET, algorithm: str = "HS256", **changes: object) -> str:
    return jwt.encode(claims(**changes), secret, algorithm=algorithm)


def test_what_was_issued_is_understood() -> None:
    identity = tokens.verify(SECRET, tokens.issue(SECRET, "+49 30 1234", "acme", ["reviewer", "sender"], 60))
    assert (identity.sub, identity.tenant, identity.roles) == (
        "+49 30 1234",
        "acme",
        frozenset({"sender", "reviewer"}),
    )
    assert identity.session


def test_an_identity_knows_when_its_token_ends() -> None:
    before = int(time.time())
    assert before + 60 <= tokens.verify(SECRET, tokens.issue(SECRET, "ann", "acme", ["sender"], 60)).expires_at
    assert tokens.verify(SECRET, encoded(exp=before + 500)).expires_at == before + 500


def test_only_the_word_team_with_its_colon_is_taken() -> None:
    for sub in ("team", "teamwork:it", "Team:it", "a team:it"):
        assert tokens.verify(SECRET, tokens.issue(SECRET, sub, "acme", ["sender"], 60)).sub == sub


@pytest.mark.parametrize(("roles", "staff"), [(["sender"], False), (["viewer"], True), (["sender", "admin"], True)])
def test_staff_is_whoever_is_more_than_a_sender(roles: list[str], staff: bool) -> None:
    assert tokens.verify(SECRET, tokens.issue(SECRET, "ann", "acme", roles, 60)).staff is staff


def test_two_sign_ins_are_two_sessions() -> None:
    first, second = (tokens.verify(SECRET, tokens.issue(SECRET, "ann", "acme", ["sender"], 60)) for _ in range(2))
    assert first.session != second.session


@pytest.mark.parametrize(
    "token",
    [
        "",
        "not a token",
        "a.b.c",
        encoded(secret="another secret that is long enough for the algorithm"),
        encoded(algorithm="HS512"),
        jwt.encode(claims(), "", algorithm="none"),
        encoded(exp=int(time.time()) - 1),
        encoded(exp=None),
        encoded(sid=None),
        encoded(sub=None),
        encoded(tenant=None),
        encoded(roles=None),
        encoded(sub=""),
        encoded(sub=7),
        encoded(sub="team:it"),
        encoded(tenant="a:b"),
        encoded(tenant="a\nb"),
        encoded(sub="x" * (MAX_KEY_PART + 1)),
        encoded(sub="é" * (MAX_KEY_PART // 2 + 1)),
        encoded(tenant="字" * (MAX_KEY_PART // 2)),
        encoded(sub="\ud800"),
        encoded(roles=[]),
        encoded(roles="admin"),
        encoded(roles=["root"]),
        encoded(roles=["admin", 1]),
        encoded(iat=int(time.time()) + 600),
    ],
)
def test_any_other_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        tokens.verify(SECRET, token)


def test_who_has_another_stacks_token_is_told_where_to_look() -> None:
    with pytest.raises(InvalidToken, match="another stack's: `workbot status`"):
        tokens.verify(SECRET, encoded(secret="another secret that is long enough for the algorithm"))


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(garbage: bytes) -> None:
    with pytest.raises(InvalidToken):
        tokens.verify(SECRET, garbage.decode("latin-1"))


@pytest.mark.parametrize(
    ("sub", "tenant", "roles"),
    [("", "acme", ["sender"]), ("team:it", "acme", ["sender"]), ("a", "b:c", ["sender"]), ("a", "b", [])],
)
def test_no_token_is_issued_that_would_be_refused(sub: str, tenant: str, roles: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must be|must not"):
        tokens.issue(SECRET, sub, tenant, roles, 60)


def test_a_short_key_stops_the_process() -> None:
    with pytest.raises(Misconfigured):
        tokens.Bearer("short")
