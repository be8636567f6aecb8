"""The documents service as children: the deploy step that readies the shared parts, the API and the worker."""

import sys
from collections.abc import Mapping

from messaging.settings import inherited_environment
from stack import probes
from stack.child import INFRA, Child
from stack.endpoints import Endpoints
from stack.layout import Layout

SERVICE = "documents"


def children(layout: Layout, endpoints: Endpoints, given: Mapping[str, str]) -> list[Child]:
    """Deploy, API and worker. `given` are WORKBOT_ variables of the person, for the services; the stack's own win."""
    database = endpoints.databases[SERVICE]
    common = {
        **inherited_environment(),
        **given,
        "WORKBOT_HOST": "127.0.0.1",
        "WORKBOT_KAFKA_BOOTSTRAP": endpoints.kafka,
        "WORKBOT_REGISTRY_URL": endpoints.registry,
        "WORKBOT_DATABASE_URL": database.url,
        "WORKBOT_DATABASE_PASSWORD_FILE": str(database.password_file),
        "WORKBOT_TOKEN_SECRET_FILE": str(endpoints.token_secret_file),
        "WORKBOT_STORAGE_DIR": str(endpoints.storage),
    }
    deploy = Child(
        name="deploy",
        command=(sys.executable, "-P", "-m", "stack.deploy", "--data-dir", str(layout.root)),
        environment=inherited_environment(),
        needs=INFRA,
        once=True,
    )
    return [
        deploy,
        _process("api", endpoints.documents_api, common),
        _process("worker", endpoints.documents_worker, common),
    ]


def _process(role: str, url: str, environment: Mapping[str, str]) -> Child:
    async def probe() -> None:
        await probes.expect_ok(f"{url}/readyz")

    port = url.rpartition(":")[2]
    return Child(
        name=f"{SERVICE}-{role}",
        command=(sys.executable, "-P", "-m", f"services.{SERVICE}.main", role),
        address=url,
        environment={**environment, "WORKBOT_PORT": port},
        ports=(int(port),),
        needs=(*INFRA, "deploy"),
        probe=probe,
        grace=20.0,
    )
