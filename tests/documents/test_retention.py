"""A settled document's file goes after its time; what was read of it stays, and whoever asks is told."""

import os
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from messaging.codec import Codec
from messaging.database import Pool
from messaging.errors import NotRetryable
from messaging.job import Job
from messaging.message import Key
from messaging.timers import Work
from schemas.events import DocumentReadingRequested
from services.documents import store, upkeep
from services.documents.extraction import Extraction
from services.documents.handlers import ReadDocument
from services.documents.pages import Pages
from services.documents.providers import BuiltinReader
from services.documents.records import Submission
from services.documents.settings import DocumentsSettings
from services.documents.sources import Sources
from services.documents.storage import LocalStorage
from tests.documents.conftest import Face, StartFace
from tests.fixtures.processes import Home
from web.outbound import Resolver

STATES = ("queued", "reading", "retrying", "waiting_for_review", "approved", "rejected", "failed")
SETTLED = {"approved", "rejected", "failed"}


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[LocalStorage]:
    storage = LocalStorage(tmp_path)
    await storage.open()
    yield storage
    storage.close()


def timers(storage: LocalStorage, folder: Path, days: float = 365) -> dict[str, Work]:
    settings = DocumentsSettings(database_url="unused", storage_dir=folder, file_retention_days=days)
    return {name: work for name, (_, work) in upkeep.timers(settings, storage).items()}


async def document(pool: Pool, storage: LocalStorage, tenant: str, *, url: bool = False) -> uuid.UUID:
    document_id = uuid.uuid4()
    if not url:
        incoming = storage.receive(str(document_id))
        await incoming.write(b"Total: 1.00")
        await incoming.keep()
    submission = Submission(
        id=document_id,
        tenant=tenant,
        sender="ann",
        kind="url" if url else "file",
        content_type="text/plain",
        size_bytes=0 if url else 11,
        fingerprint=b"",
        storage_key=None if url else str(document_id),
        url="http://127.0.0.1/" if url else None,
    )
    async with pool.connection() as conn:
        await store.accept(conn, submission, [], 100)
    return document_id


def settle(home: Home, document_id: uuid.UUID, status: str, age: str) -> None:
    home.change(
        "update documents set status = %s, updated_at = now() - %s::interval where id = %s", status, age, document_id
    )


def row(home: Home, document_id: uuid.UUID) -> dict[str, Any]:
    ((found,),) = home.rows("select to_jsonb(d) from documents d where id = %s", document_id)
    assert isinstance(found, dict)
    return found


def age_files(folder: Path) -> None:
    old = time.time() - 2 * upkeep.ORPHANED_AFTER_SECONDS
    for path in folder.rglob("*"):
        os.utime(path, (old, old))


def kept(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


async def test_only_settled_documents_of_that_age_lose_their_file(
    home: Home, pool: Pool, storage: LocalStorage, tmp_path: Path, tenant: str
) -> None:
    documents = {(status, age): await document(pool, storage, tenant) for status in STATES for age in (364, 366)}
    for (status, age), document_id in documents.items():
        settle(home, document_id, status, f"{age} days")
    page = await document(pool, storage, tenant, url=True)
    settle(home, page, "approved", "366 days")
    age_files(tmp_path)
    works = timers(storage, tmp_path)
    for name in ("documents.forget_files", "documents.remove_orphans"):
        async with pool.connection() as conn:
            assert not await works[name](conn)
    gone = {documents[status, 366] for status in SETTLED}
    assert kept(tmp_path) == {str(document_id) for document_id in set(documents.values()) - gone}
    for document_id in {*documents.values(), page}:
        assert (row(home, document_id)["file_removed_at"] is not None) is (document_id in gone)
        assert (row(home, document_id)["storage_key"] is None) is (document_id in {*gone, page})


async def test_rows_go_first_so_that_a_crash_in_between_leaves_an_orphan(
    home: Home, pool: Pool, storage: LocalStorage, tmp_path: Path, tenant: str
) -> None:
    document_id = await document(pool, storage, tenant)
    settle(home, document_id, "approved", "2 days")
    age_files(tmp_path)
    works = timers(storage, tmp_path, days=1)
    async with pool.connection() as conn:
        await works["documents.forget_files"](conn)
        await conn.rollback()
    assert row(home, document_id)["storage_key"] == str(document_id)
    async with pool.connection() as conn:
        await works["documents.forget_files"](conn)
    assert kept(tmp_path) == {str(document_id)}, "the file belongs to nobody now; here the process may die"
    async with pool.connection() as conn:
        await works["documents.remove_orphans"](conn)
    assert kept(tmp_path) == set()


async def test_a_run_takes_one_batch(
    home: Home, pool: Pool, storage: LocalStorage, tmp_path: Path, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_BATCH", 2)
    for _ in range(3):
        settle(home, await document(pool, storage, tenant), "failed", "2 days")
    work = timers(storage, tmp_path, days=1)["documents.forget_files"]
    more = []
    for _ in range(2):
        async with pool.connection() as conn:
            more.append(await work(conn))
    assert more == [True, False]


async def test_a_job_that_is_sent_back_after_that_fails_at_once_and_says_why(
    home: Home, pool: Pool, codec: Codec, storage: LocalStorage, tmp_path: Path, tenant: str
) -> None:
    document_id = await document(pool, storage, tenant)
    settle(home, document_id, "failed", "2 days")
    async with pool.connection() as conn:
        await timers(storage, tmp_path, days=1)["documents.forget_files"](conn)
    extraction = Extraction(1, 20.0)
    pages = Pages(allow=frozenset(), max_bytes=1000, timeout_seconds=2, resolve=Resolver(1))
    reader = ReadDocument(pool, codec, Sources(storage, pages, extraction), BuiltinReader(extraction), 0.8)
    event = DocumentReadingRequested(
        document_id=str(document_id),
        tenant=tenant,
        sender="ann",
        kind="file",
        content_type="text/plain",
        storage_key=str(document_id),
        url=None,
        size_bytes=11,
    )
    job = Job("m1", 1, Key(tenant, "ann"), 1, event, {}, pool=pool)
    with pytest.raises(NotRetryable, match=f"was removed on {datetime.now(UTC):%Y-}.*hand the document in") as error:
        await reader.run(job)
    assert error.value.reason == "file_removed"
    async with pool.connection() as conn:
        await reader.gave_up(conn, job, error.value, 1)
    assert (row(home, document_id)["status"], row(home, document_id)["error"]) == ("failed", str(error.value))


async def test_the_api_says_so(
    home: Home, pool: Pool, start_process: StartFace, face: Face, tenant: str, tmp_path: Path
) -> None:
    with face.client("ann", tenant) as ann:
        href = ann.post("/api/documents", json={"text": "Total: 1.00"}).json()["href"]
        assert ann.get(href).json()["file_removed_at"] is None
        document_id = uuid.UUID(href.rpartition("/")[2])
        settle(home, document_id, "approved", "2 days")
        storage = LocalStorage(tmp_path)
        async with pool.connection() as conn:
            await timers(storage, tmp_path, days=1)["documents.forget_files"](conn)
        storage.close()
        shown = ann.get(href).json()
        assert datetime.fromisoformat(shown["file_removed_at"]) <= datetime.now(UTC)
        assert (shown["status"], shown["size_bytes"]) == ("approved", 11)
        assert ann.get("/api/documents").json()["items"] == [shown]
