"""What the gateway keeps of a sender, and how it goes."""

from psycopg import sql

from messaging.erasure import OURS, Held
from services.gateway.store.worker import CLOSED, EMPTIED

HELD = (
    Held(
        "requests",
        "select count(*) from requests where tenant = %(tenant)s and sender = %(sender)s"
        " and created_at <= %(until)s::timestamptz",
        "delete from requests where id in (select id from requests where tenant = %(tenant)s and sender = %(sender)s"
        " and created_at <= %(until)s::timestamptz limit %(limit)s)",
    ),
    # Not deleted: without its identity the projector would open a letter again from its topic. One that is stored
    # later the projector judges by when its event happened.
    Held(
        "dead letters",
        "select count(*) from dead_letters where tenant = %(tenant)s and owner = %(sender)s and cleared_at is null"
        " and stored_at <= %(until)s::timestamptz",
        sql.SQL(
            "update dead_letters d set {emptied}, {closed} where d.id in (select id from dead_letters"
            " where tenant = %(tenant)s and owner = %(sender)s and cleared_at is null"
            " and stored_at <= %(until)s::timestamptz limit %(limit)s for update)"
        )
        .format(emptied=EMPTIED, closed=CLOSED)
        .as_bytes(None),
    ),
    *OURS,
)
"""By kind, in the order in which it is erased."""
