"""What happens to a document's bytes when its row does not come to be."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from services.documents import submissions
from services.documents.intake import Intake
from services.documents.settings import DocumentsSettings
from services.documents.storage import LocalStorage
from web.tokens import Identity

WHO = Identity("ann", "acme", frozenset({"sender"}), "s1")


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[LocalStorage]:
    storage = LocalStorage(tmp_path)
    await storage.open()
    yield storage
    storage.close()


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        (psycopg.errors.ProgramLimitExceeded("index row too long"), 0),
        (psycopg.errors.CheckViolation("no"), 0),
        (psycopg.errors.AdminShutdown("going down"), 1),
        (psycopg.OperationalError("the connection broke"), 1),
    ],
)
async def test_bytes_stay_only_while_a_row_may_name_them(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: psycopg.Error, left: int
) -> None:
    async def refuse(*_: object) -> None:
        raise fault

    nothing: Any = None
    given = {"database_url": "postgresql://nobody@localhost/none", "storage_dir": tmp_path}
    settings = DocumentsSettings.model_validate(given)
    monkeypatch.setattr(Intake, "_accept", refuse)
    with pytest.raises(type(fault)):
        await Intake(nothing, storage, nothing, settings).text(WHO, None, submissions.Text(secrets.token_bytes(9)))
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == left
