"""The secrets of one data directory: made at the first start, mode 0600, never printed."""

import os
import secrets
from pathlib import Path

from stack.layout import Layout

TOKEN_KEY = "token.key"  # noqa: S105
SERVICES = ("documents", "gateway", "notifications", "analytics")
"""The services that have a database, and so a password."""

NAMES = ("db-admin.pw", "db-owner.pw", "db-registry.pw", *(f"db-{service}.pw" for service in SERVICES), TOKEN_KEY)


def ensure(layout: Layout) -> None:
    """Make every secret that is not there yet: 256 bits each."""
    for name in NAMES:
        path = layout.secrets / name
        if path.exists():
            continue
        # Whole or not at all: a start that is killed in between must not leave an empty secret.
        fresh = path.with_name(f".{name}.{secrets.token_hex(4)}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        os.replace(fresh, path)


def path(layout: Layout, name: str) -> Path:
    """The file of one of `NAMES`."""
    if name not in NAMES:
        raise KeyError(name)
    return layout.secrets / name
