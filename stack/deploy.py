"""The deploy step: what the servers must hold before a service starts. Safe to repeat, and to run three at once.

`python -m stack.deploy --data-dir D` does all of it; the `workbot` command has the parts.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import make_conninfo

import schemas.deploy
import services.analytics
import services.documents
import services.gateway
import services.notifications
from messaging import migrate as migrations
from messaging.errors import MessagingError
from messaging.settings import read_secret
from stack import control
from stack.endpoints import Database, Endpoints

DIRECTORIES: Mapping[str, Path] = {
    "documents": Path(services.documents.__path__[0]) / "migrations",
    "gateway": Path(services.gateway.__path__[0]) / "migrations",
    "notifications": Path(services.notifications.__path__[0]) / "migrations",
    "analytics": Path(services.analytics.__path__[0]) / "migrations",
}
"""Each service that has a database, and where its own migrations are."""


def migrate(endpoints: Endpoints) -> list[str]:
    """Roles, databases and migrations of every service; returns what was applied."""
    owner_password = read_secret(endpoints.owner.password_file, "the owner's database password")
    applied: list[str] = []
    for service, directory in DIRECTORIES.items():
        password = read_secret(endpoints.databases[service].password_file, f"the database password of {service}")
        migrations.provision(_conninfo(endpoints.admin), service, password, owner_password)
        owner = make_conninfo(_conninfo(endpoints.owner), dbname=service)
        applied += [f"{service}: {name}" for name in migrations.migrate(owner, [directory], service)]
    return applied


async def create_topics(endpoints: Endpoints) -> list[str]:
    """The topics of topics.toml; returns what changed."""
    return await schemas.deploy.create_topics(endpoints.kafka)


async def register(endpoints: Endpoints) -> list[str]:
    """The schemas of every event; returns one line per version."""
    return await schemas.deploy.register(endpoints.registry)


async def everything(endpoints: Endpoints) -> list[str]:
    """All of it, the three servers at once. One error group if any fails."""
    async with asyncio.TaskGroup() as group:
        parts = [
            group.create_task(asyncio.to_thread(migrate, endpoints)),
            group.create_task(create_topics(endpoints)),
            group.create_task(register(endpoints)),
        ]
    return [line for part in parts for line in part.result()]


def _conninfo(database: Database) -> str:
    password = read_secret(database.password_file, "a database password")
    return make_conninfo(database.url, password=password, connect_timeout=5, application_name="workbot-deploy")


def main() -> int:
    """Run everything against a running stack; what was done and what failed goes to the output."""
    parser = argparse.ArgumentParser(prog="python -m stack.deploy", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    data_dir = parser.parse_args().data_dir
    failed = False
    try:
        for line in asyncio.run(everything(control.endpoints(data_dir))):
            sys.stdout.write(f"{line}\n")
    except* MessagingError as errors:
        failed = True
        for error in errors.exceptions:
            sys.stderr.write(f"{error}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
