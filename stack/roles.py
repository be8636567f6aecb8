"""Database roles and databases that the stack itself needs: the registry's, and the owner of the services' databases."""

import psycopg
from psycopg import sql

LOCK = 0x576F726B_426F7401
"""Advisory lock under which roles and databases are made, taken in the database `postgres`."""


def ensure_role(
    connection: "psycopg.Connection[tuple[object, ...]]", name: str, password: str, *, owner: bool
) -> None:
    """Make the role, or give it this password. An owner may make databases and roles; others may only sign in.

    The server is sent a SCRAM verifier, so the password itself is in no statement and no log.
    """
    verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode("ascii")
    known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone()
    connection.execute(
        sql.SQL("{} ROLE {} LOGIN {} NOSUPERUSER PASSWORD {}").format(
            sql.SQL("ALTER" if known else "CREATE"),
            sql.Identifier(name),
            sql.SQL("CREATEDB CREATEROLE" if owner else "NOCREATEDB NOCREATEROLE"),
            sql.Literal(verifier),
        )
    )


def ensure_database(connection: "psycopg.Connection[tuple[object, ...]]", name: str, owner: str) -> None:
    """Make a database that only its owner may connect to. Not inside a transaction."""
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(owner)))
    connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))


def ensure(
    admin_conninfo: str, role: str, password: str, *, database: str | None = None, owner: bool = False
) -> None:
    """A role, and a database of its own if one is named. Safe to run by several at once."""
    with psycopg.connect(admin_conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        ensure_role(connection, role, password, owner=owner)
        if database is not None:
            ensure_database(connection, database, role)
