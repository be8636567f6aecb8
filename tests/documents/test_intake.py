"""What happens to a document's bytes when its row does not come to be."""

import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import Outage
from services.documents import store, submissions
from services.documents.intake import Intake
from services.documents.records import Earlier
from services.documents.settings import DocumentsSettings
from services.documents.storage import LocalStorage
from tests.fixtures.processes import Home
from web.tokens import Identity

WHO = Identity("ann", "acme", frozenset({"sender"}), "s1", 2**31)


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


@pytest.mark.parametrize("erased", [1, 2])
async def test_one_in_the_way_that_is_erased_makes_room(
    home: Home,
    pool: Pool,
    codec: Codec,
    storage: LocalStorage,
    tmp_path: Path,
    tenant: str,
    erased: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another with the key comes in between and is erased before it is read: this one is taken in, with its bytes.
    If that happens again, it is refused as while a server is away, with nothing kept."""
    real, answers = store.earlier, 0

    async def earlier(conn: Connection, tenant: str, sender: str, key: str) -> Earlier | None:
        nonlocal answers
        home.change("delete from documents where tenant = %s", tenant)
        found = await real(conn, tenant, sender, key)
        if answers < erased:
            home.change(
                "insert into documents (id, tenant, sender, kind, content_type, size_bytes, url, idempotency_key,"
                " fingerprint) values (%s, %s, %s, 'url', 'text/html', 0, 'http://x', %s, 'x')",
                *(uuid.uuid4(), tenant, sender, key),
            )
        answers += 1
        return found

    monkeypatch.setattr(store, "earlier", earlier)
    settings = DocumentsSettings.model_validate({"database_url": home.conninfo, "storage_dir": tmp_path})
    who = replace(WHO, tenant=tenant)
    taking = Intake(pool, storage, codec, settings).text(who, "k", submissions.Text(b"hello"))
    if erased == 1:
        receipt = await taking
        assert not receipt.repeated
        assert home.rows("select id from documents where tenant = %s", tenant) == [(receipt.id,)]
    else:
        with pytest.raises(Outage):
            await taking
    ((events,),) = home.rows("select count(*) from outbox where key = %s", f"{tenant}:ann")
    files = sum(path.is_file() for path in tmp_path.rglob("*"))
    assert (events, files) == ((2, 1) if erased == 1 else (0, 0))
