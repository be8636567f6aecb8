"""Kafka forgets, and nothing that a service must know of its records is forgotten before."""

import pytest

from messaging.errors import Misconfigured
from messaging.settings import load
from schemas import periods, topics
from schemas.retention import DEAD_LETTERS_GONE_DAYS, RetentionSettings
from services.documents.settings import DocumentsSettings
from services.gateway.settings import GatewaySettings
from services.notifications.settings import NotificationsSettings


@pytest.fixture(autouse=True)
def _database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBOT_DATABASE_URL", "unused")


def test_what_comes_by_the_list_and_by_default_fits() -> None:
    settings = load(RetentionSettings)
    assert settings.outbox_retention_days == 7
    assert settings.ledger_retention_days == 14
    kept = {name: days for days, name in topics.load().kept_days()}
    assert kept["documents.events"] == kept["requests.events"] == 8
    assert kept["documents.events"] < kept["documents.events.notifications.retry"] < settings.ledger_retention_days
    assert "documents.jobs" not in kept
    assert "documents.jobs.reader.retry" not in kept
    assert load(GatewaySettings).letter_retention_days < periods.DEAD_LETTER_DAYS
    assert settings.erasure_retention_days > DEAD_LETTERS_GONE_DAYS


def test_a_ledger_that_forgets_before_a_topic_does_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBOT_OUTBOX_RETENTION_DAYS", "1")
    monkeypatch.setenv("WORKBOT_LEDGER_RETENTION_DAYS", "10")
    with pytest.raises(Misconfigured, match=r"longer than 11\.43, .* how long \S+\.retry may still have a record"):
        load(RetentionSettings)
    monkeypatch.setenv("WORKBOT_LEDGER_RETENTION_DAYS", "12")
    assert load(RetentionSettings).ledger_retention_days == 12


def test_an_erasure_that_is_forgotten_before_its_dead_letters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBOT_ERASURE_RETENTION_DAYS", "100")
    with pytest.raises(Misconfigured, match=r"longer than 102\.9"):
        load(RetentionSettings)


@pytest.mark.parametrize("service", [DocumentsSettings, GatewaySettings, NotificationsSettings])
def test_every_service_with_a_ledger_is_held_to_it(service: type[RetentionSettings]) -> None:
    assert issubclass(service, RetentionSettings)
