"""The services as children: the deploy step that readies the shared parts, then each service's API and worker."""

import sys
from collections.abc import Iterable, Mapping

from messaging.process import EX_CONFIG
from messaging.settings import inherited_environment
from stack import patience, probes
from stack.child import INFRA, Child
from stack.endpoints import Endpoints
from stack.layout import Layout

OWN_VARIABLES = frozenset(
    f"WORKBOT_{name}"
    for name in (
        *("HOST", "PORT", "KAFKA_BOOTSTRAP", "REGISTRY_URL", "TOKEN_SECRET_FILE", "STORAGE_DIR", "TABLES_DIR"),
        *("DATABASE_URL", "DATABASE_PASSWORD_FILE", "PUBLIC_URL", "WORKERS"),
        *("DOCUMENTS_URL", "NOTIFICATIONS_URL", "ANALYTICS_URL"),
    )
)
"""What the services read and the stack tells them itself: the same given by a person is not used."""


def consuming(service: str, parts: Iterable[str]) -> str:
    """Which of these parts of a stack runs the service's consumers: its worker, or its only process."""
    worker = f"{service}-worker"
    return worker if worker in parts else f"{service}-api"


def children(layout: Layout, endpoints: Endpoints, given: Mapping[str, str]) -> list[Child]:
    """Deploy, then all processes. `given` are WORKBOT_ variables of the person, for all; the stack's own win."""
    common = {
        **inherited_environment(),
        **given,
        "WORKBOT_HOST": "127.0.0.1",
        "WORKBOT_KAFKA_BOOTSTRAP": endpoints.kafka,
        "WORKBOT_REGISTRY_URL": endpoints.registry,
        "WORKBOT_TOKEN_SECRET_FILE": str(endpoints.token_secret_file),
    }
    documents = common | _database(endpoints, "documents") | {"WORKBOT_STORAGE_DIR": str(endpoints.storage)}
    gateway = (
        common
        | _database(endpoints, "gateway")
        | {
            "WORKBOT_DOCUMENTS_URL": endpoints.documents_api,
            "WORKBOT_NOTIFICATIONS_URL": endpoints.notifications_api,
            "WORKBOT_ANALYTICS_URL": endpoints.analytics_api,
            "WORKBOT_WORKERS": f"{endpoints.documents_worker},{endpoints.notifications_api}",
        }
    )
    notifications = common | _database(endpoints, "notifications") | {"WORKBOT_PUBLIC_URL": endpoints.gateway_api}
    analytics = common | _database(endpoints, "analytics") | {"WORKBOT_TABLES_DIR": str(layout.tables)}
    deploy = Child(
        name="deploy",
        command=(sys.executable, "-P", "-m", "stack.deploy", "--data-dir", str(layout.root)),
        environment=inherited_environment(),
        needs=INFRA,
        once=True,
    )
    return [
        deploy,
        _process("documents", "api", endpoints.documents_api, documents),
        _process("documents", "worker", endpoints.documents_worker, documents),
        _process("gateway", "api", endpoints.gateway_api, gateway),
        _process("gateway", "worker", endpoints.gateway_worker, gateway),
        _process("notifications", "api", endpoints.notifications_api, notifications),
        _process("analytics", "api", endpoints.analytics_api, analytics),
    ]


def _database(endpoints: Endpoints, service: str) -> dict[str, str]:
    database = endpoints.databases[service]
    return {
        "WORKBOT_DATABASE_URL": database.url,
        "WORKBOT_DATABASE_PASSWORD_FILE": str(database.password_file),
    }


def _process(service: str, role: str, url: str, environment: Mapping[str, str]) -> Child:
    async def probe() -> None:
        await probes.expect_ok(f"{url}/readyz")

    async def alive() -> None:
        await probes.expect_ok(f"{url}/healthz")

    port = url.rpartition(":")[2]
    return Child(
        name=f"{service}-{role}",
        command=(sys.executable, "-P", "-m", f"services.{service}.main", role),
        address=url,
        environment={**environment, "WORKBOT_PORT": port},
        ports=(int(port),),
        # Deploy needs the others, once: started anew, a service does what it can without them and waits for the rest.
        # And it is stopped before them, because deploy is.
        needs=("postgres", "deploy"),
        probe=probe,
        alive=alive,
        patience=patience.SERVICE_SECONDS,
        grace=20.0,
        refusal=EX_CONFIG,
    )
