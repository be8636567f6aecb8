"""What is said of settings that cannot be: the variable, as a person sets it."""

import pytest
from pydantic_settings import BaseSettings

from messaging.errors import Misconfigured
from messaging.settings import given_environment, load, variables
from services.analytics.settings import AnalyticsSettings
from services.documents.settings import DocumentsSettings
from services.gateway.settings import GatewaySettings
from services.notifications.settings import NotificationsSettings
from stack import given
from stack.settings import StackSettings

SERVICES = [DocumentsSettings, GatewaySettings, NotificationsSettings, AnalyticsSettings]
NEEDED = {
    "WORKBOT_DATABASE_URL": "unused",
    "WORKBOT_STORAGE_DIR": "storage",
    "WORKBOT_TABLES_DIR": "tables",
}
EVERYWHERE = [
    ({"WORKBOT_OUTBOX_RETENTION_DAYS": "8"}, "WORKBOT_LEDGER_RETENTION_DAYS", "WORKBOT_OUTBOX_RETENTION_DAYS"),
    ({"WORKBOT_OUTBOX_RETENTION_DAYS": "1", "WORKBOT_LEDGER_RETENTION_DAYS": "3"}, "WORKBOT_LEDGER_RETENTION_DAYS"),
    ({"WORKBOT_ERASURE_RETENTION_DAYS": "100"}, "WORKBOT_ERASURE_RETENTION_DAYS"),
    ({"WORKBOT_PORT": "many"}, "WORKBOT_PORT: "),
]
ONE = [
    (NotificationsSettings, {"WORKBOT_SMTP_HOST": "x"}, "WORKBOT_SMTP_HOST", "WORKBOT_SMTP_FROM"),
    (NotificationsSettings, {"WORKBOT_SMTP_USER": "x"}, "WORKBOT_SMTP_USER", "WORKBOT_SMTP_PASSWORD_FILE"),
    (
        NotificationsSettings,
        {"WORKBOT_SMTP_USER": "x", "WORKBOT_SMTP_PASSWORD_FILE": "f", "WORKBOT_SMTP_TLS": "none"},
        "WORKBOT_SMTP_USER",
        "WORKBOT_SMTP_TLS",
    ),
    (NotificationsSettings, {"WORKBOT_WEBHOOK_ALLOW": "here"}, "WORKBOT_WEBHOOK_ALLOW: 'here' is not host:port"),
    (DocumentsSettings, {"WORKBOT_READER_PER_KEY": "11"}, "WORKBOT_READER_PER_KEY", "WORKBOT_READER_TOTAL (10)"),
    (GatewaySettings, {"WORKBOT_WORKERS": "here"}, "WORKBOT_WORKERS: 'here' is not an address"),
    (StackSettings, {"WORKBOT_PORT_KAFKA": "0"}, "WORKBOT_PORT_KAFKA: "),
]
CASES = [(kind, *case) for kind in SERVICES for case in EVERYWHERE] + ONE


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in given_environment():
        monkeypatch.delenv(name)
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("case", CASES)
def test_it_names_the_variables_and_nothing_else(
    case: tuple[type[BaseSettings], dict[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, given_, *named = case
    for name, value in given_.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Misconfigured) as refused:
        load(kind)
    said = str(refused.value)
    assert said.startswith("Settings are missing or wrong: WORKBOT_")
    assert all(name in said for name in named), said
    assert "Value error" not in said
    assert "WORKBOT_: " not in said
    assert not [field for field in kind.model_fields if "_" in field and field in said.split()]


def test_every_class_loads_with_what_it_needs() -> None:
    for kind in given.KINDS:
        load(kind)


def test_what_a_variable_is_called() -> None:
    assert variables(StackSettings)["port_kafka"] == "WORKBOT_PORT_KAFKA"
