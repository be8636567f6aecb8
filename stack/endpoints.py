"""Where everything is: the addresses of a running stack, for those who talk to it from outside."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Database:
    """A libpq URI without its password, and the file that holds the password."""

    url: str
    password_file: Path


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Everything listens on loopback. The address of a service that is not part of the stack is empty.

    kafka                bootstrap servers        registry    base address of the Confluent API
    postgres             host:port                databases   one per service, by the service's name
    admin, owner         the superuser, and the role that owns the services' databases
    token_secret_file    the key that signs tokens
    ports                every port by its name, as `workbot up --port` takes it
    postgres_data        where Postgres keeps its files; outside data_dir when its own user cannot reach that
    """

    kafka: str
    registry: str
    postgres: str
    admin: Database
    owner: Database
    databases: Mapping[str, Database]
    documents_api: str
    documents_worker: str
    gateway_api: str
    gateway_worker: str
    notifications_api: str
    analytics_api: str
    token_secret_file: Path
    storage: Path
    postgres_data: Path
    data_dir: Path
    ports: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """The same, made of what JSON knows."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Endpoints":
        return cls(
            kafka=raw["kafka"],
            registry=raw["registry"],
            postgres=raw["postgres"],
            admin=_database(raw["admin"]),
            owner=_database(raw["owner"]),
            databases={name: _database(value) for name, value in raw["databases"].items()},
            documents_api=raw["documents_api"],
            documents_worker=raw["documents_worker"],
            # A supervisor that was started before there were these services has none.
            gateway_api=raw.get("gateway_api", ""),
            gateway_worker=raw.get("gateway_worker", ""),
            notifications_api=raw.get("notifications_api", ""),
            analytics_api=raw.get("analytics_api", ""),
            token_secret_file=Path(raw["token_secret_file"]),
            storage=Path(raw["storage"]),
            postgres_data=Path(raw["postgres_data"]),
            data_dir=Path(raw["data_dir"]),
            ports=raw["ports"],
        )


def _database(raw: Mapping[str, str]) -> Database:
    return Database(raw["url"], Path(raw["password_file"]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return str(value) if isinstance(value, Path) else value
