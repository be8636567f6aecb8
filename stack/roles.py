"""A database role with a database of its own, for a part of the stack that is not a service of ours."""

import psycopg
from psycopg import sql

_LOCK = 1_987_001
"""Advisory lock in the database `postgres`, so that several may do this at once."""


def ensure(admin_conninfo: str, name: str, password: str) -> None:
    """Make the role and its database, both named `name`, or give the role this password.

    The server is sent a SCRAM verifier: the password itself is in no statement and no log.
    """
    with psycopg.connect(admin_conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
        verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
        known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone()
        connection.execute(
            sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                sql.SQL("ALTER" if known else "CREATE"), sql.Identifier(name), sql.Literal(verifier)
            )
        )
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(name)))
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))
