"""Settings of the embedded stack: where it keeps things, and the ports a person may fix."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

PROJECT = Path(__file__).resolve().parent.parent

_PORT = "Port to use; fails when it is taken. Unset: the usual one, or a free one near it."


class StackSettings(BaseSettings):
    """What the stack can be told through the environment; the command's options win over it."""

    model_config = SettingsConfigDict(env_prefix="WORKBOT_", frozen=True, extra="ignore")

    data_dir: Path = Field(PROJECT / ".workbot", description="Where everything the stack writes lives.")
    cache_dir: Path = Field(Path("~/.cache/workbot"), description="Where downloads are kept, for all data folders.")
    maven_url: str | None = Field(None, description="Base address of a Maven repository to use instead of Central.")
    postgres_user: str = Field(
        "workbot-postgres", description="System user that Postgres runs as when the stack is started by root."
    )

    port_postgres: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_kafka: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_kafka_controller: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_registry: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_registry_management: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_documents_api: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_documents_worker: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_gateway_api: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_gateway_worker: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_notifications_api: int | None = Field(None, ge=1, le=65535, description=_PORT)
    port_analytics_api: int | None = Field(None, ge=1, le=65535, description=_PORT)

    def fixed_ports(self) -> dict[str, int]:
        """The ports that were set, by the name used everywhere else (`documents-api`)."""
        return {
            name.removeprefix("port_").replace("_", "-"): port
            for name, port in self.model_dump().items()
            if name.startswith("port_") and port is not None
        }
