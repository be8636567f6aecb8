"""What the notifications service keeps of a sender and how it goes: what they were told, and others were of them."""

from typing import LiteralString

from psycopg import sql

from messaging.erasure import OURS, Held

_PARTS = {
    "theirs": sql.SQL(
        "n.tenant = %(tenant)s and (n.about = %(sender)s or (n.audience_kind = 'person' and n.audience = %(sender)s))"
        " and n.created_at <= %(until)s::timestamptz"
    ),
    "subscribed": sql.SQL(
        "tenant = %(tenant)s and owner_kind = 'person' and owner = %(sender)s"
        " and created_at <= %(until)s::timestamptz"
    ),
    "up_to": sql.SQL("tenant = %(tenant)s and reader = %(sender)s"),
    "read": sql.SQL("n.id = r.notification and n.tenant = %(tenant)s and r.reader = %(sender)s"),
}


def _query(text: LiteralString) -> bytes:
    return sql.SQL(text).format(**_PARTS).as_bytes(None)


HELD = (
    # These before the notifications, which would take them along uncounted. What was read goes whenever that was: it
    # is of no piece of work, and how far they have read must not outlast the notes that it stands for.
    Held(
        "notes of what they read",
        _query("select count(*) from reads r join notifications n on {read}"),
        _query("delete from reads r using notifications n where {read}"),
    ),
    Held(
        "how far they have read",
        _query("select count(*) from read_up_to where {up_to}"),
        _query("delete from read_up_to where {up_to}"),
    ),
    Held(
        "deliveries",
        _query("select count(*) from deliveries d join notifications n on n.id = d.notification where {theirs}"),
        _query(
            "delete from deliveries where id in (select d.id from deliveries d"
            " join notifications n on n.id = d.notification where {theirs} limit %(limit)s)"
        ),
    ),
    Held(
        "notifications",
        _query("select count(*) from notifications n where {theirs}"),
        _query(
            "delete from notifications where id in (select n.id from notifications n where {theirs} limit %(limit)s)"
        ),
    ),
    Held(
        "subscriptions",
        _query("select count(*) from subscriptions where {subscribed}"),
        _query("delete from subscriptions where {subscribed}"),
    ),
    *OURS,
)
"""By kind, in the order in which it is erased."""
