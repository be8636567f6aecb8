"""Which children one stack has, put together from its settings and its ports."""

from collections.abc import Mapping
from dataclasses import dataclass

from stack import keys
from stack.artifacts import LOCKS, Store
from stack.child import Child
from stack.endpoints import Database, Endpoints
from stack.kafka import Kafka
from stack.layout import Layout
from stack.pghome import PostgresHome
from stack.postgres import ADMIN, Postgres
from stack.registry import Registry

OWNER = "workbot_owner"
"""The role that owns the services' databases and their tables."""

JARS = LOCKS / "jgo.lock.toml"
REGISTRY = LOCKS / "apicurio.lock.toml"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of one stack and the addresses they will have."""

    layout: Layout
    ports: Mapping[str, int]
    home: PostgresHome
    postgres: Postgres
    kafka: Kafka
    registry: Registry

    def infrastructure(self) -> list[Child]:
        """Postgres, Kafka and the registry, in start order."""
        return [self.postgres.child(), self.kafka.child(), self.registry.child()]

    def endpoints(self) -> Endpoints:
        """The addresses, fixed for as long as the stack runs."""
        server = f"127.0.0.1:{self.ports['postgres']}"

        def service(name: str) -> str:
            return f"http://127.0.0.1:{self.ports[name]}" if name in self.ports else ""

        def database(role: str, name: str, password: str) -> Database:
            return Database(f"postgresql://{role}@{server}/{name}", keys.path(self.layout, password))

        return Endpoints(
            kafka=self.kafka.bootstrap,
            registry=self.registry.url,
            postgres=server,
            admin=database(ADMIN, "postgres", "db-admin.pw"),
            owner=database(OWNER, "postgres", "db-owner.pw"),
            databases={name: database(name, name, f"db-{name}.pw") for name in keys.SERVICES},
            documents_api=service("documents-api"),
            documents_worker=service("documents-worker"),
            gateway_api=service("gateway-api"),
            gateway_worker=service("gateway-worker"),
            notifications_api=service("notifications-api"),
            analytics_api=service("analytics-api"),
            token_secret_file=keys.path(self.layout, keys.TOKEN_KEY),
            storage=self.layout.storage,
            postgres_data=self.home.data,
            data_dir=self.layout.root,
            ports=dict(self.ports),
        )


def make(layout: Layout, home: PostgresHome, ports: Mapping[str, int], store: Store) -> Plan:
    """Settle how each part runs; starts nothing."""
    postgres = Postgres(layout, home, ports["postgres"])
    kafka = Kafka(layout, ports["kafka"], ports["kafka-controller"], lambda: store.jars(JARS))
    registry = Registry(
        layout,
        postgres,
        ports["registry"],
        ports["registry-management"],
        store.folder(REGISTRY),
        lambda: store.unpacked(REGISTRY),
    )
    return Plan(layout, ports, home, postgres, kafka, registry)
