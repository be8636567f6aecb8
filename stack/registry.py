"""Apicurio Registry 3.3 as a child: the schema registry (Confluent API), kept in Postgres."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from messaging.settings import read_secret
from stack import keys, probes, roles
from stack.child import Child
from stack.java import ENVIRONMENT, java
from stack.layout import Layout
from stack.postgres import Postgres

_ROLE = "registry"


class Registry:
    """The registry of one data directory. `home` is where its archive is unpacked, `unpack` sees to it."""

    def __init__(
        self,
        layout: Layout,
        postgres: Postgres,
        port: int,
        management_port: int,
        home: Path,
        unpack: Callable[[], object],
    ) -> None:
        self._password_file = keys.path(layout, "db-registry.pw")
        self._postgres = postgres
        self._port = port
        self._management_port = management_port
        self._home = home
        self._unpack = unpack
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def child(self) -> Child:
        return Child(
            name="registry",
            command=java("-jar", str(self._home / "quarkus-run.jar"), heap_megabytes=256),
            address=f"http://127.0.0.1:{self._port}",
            ports=(self._port, self._management_port),
            environment={
                **ENVIRONMENT,
                "QUARKUS_HTTP_HOST": "127.0.0.1",
                "QUARKUS_HTTP_PORT": str(self._port),
                # Listens on every address unless told otherwise.
                "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
                "QUARKUS_MANAGEMENT_PORT": str(self._management_port),
                "APICURIO_STORAGE_KIND": "sql",
                "APICURIO_STORAGE_SQL_KIND": "postgresql",
                "APICURIO_DATASOURCE_URL": f"jdbc:postgresql://127.0.0.1:{self._postgres.port}/{_ROLE}",
                "APICURIO_DATASOURCE_USERNAME": _ROLE,
                "APICURIO_DATASOURCE_PASSWORD": read_secret(self._password_file, "the registry's database password"),
            },
            needs=("postgres",),
            prepare=self._prepare,
            probe=self._probe,
        )

    async def _prepare(self) -> None:
        await asyncio.to_thread(self._unpack)
        password = read_secret(self._password_file, "the registry's database password")
        await asyncio.to_thread(roles.ensure, self._postgres.admin_conninfo(), _ROLE, password)

    async def _probe(self) -> None:
        await probes.expect_ok(f"{self.url}/subjects")
