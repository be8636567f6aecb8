"""Files are there as a whole or not at all, and only under keys of ours."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from messaging.database import Pool
from messaging.errors import NotRetryable, Outage
from services.documents import upkeep
from services.documents.settings import DocumentsSettings
from services.documents.storage import LocalStorage
from tests.fixtures.processes import Home


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[LocalStorage]:
    storage = LocalStorage(tmp_path / "deep" / "storage")
    await storage.open()
    yield storage
    storage.close()


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("size", [0, 1, 300_000, 5_000_000])
async def test_what_is_kept_can_be_loaded(storage: LocalStorage, size: int) -> None:
    key, content = str(uuid.uuid4()), os.urandom(size)
    incoming = storage.receive(key)
    for start in range(0, size, 70_001):
        await incoming.write(content[start : start + 70_001])
    with pytest.raises(NotRetryable):
        await storage.load(key)
    await incoming.keep()
    assert await storage.load(key) == content
    await storage.remove(key)
    await storage.remove(key)
    with pytest.raises(NotRetryable) as error:
        await storage.load(key)
    assert error.value.reason == "file_missing"


@pytest.mark.parametrize("size", [0, 10, 600_000])
async def test_what_is_discarded_was_never_there(storage: LocalStorage, tmp_path: Path, size: int) -> None:
    for kept in (False, True):
        incoming = storage.receive(str(uuid.uuid4()))
        await incoming.write(b"a" * size)
        if kept:
            await incoming.keep()
        await incoming.discard()
        await incoming.discard()
    assert files(tmp_path) == []


async def test_a_write_that_is_cancelled_can_be_discarded(storage: LocalStorage, tmp_path: Path) -> None:
    for _ in range(20):
        incoming = storage.receive(str(uuid.uuid4()))
        writing = asyncio.create_task(incoming.write(b"a" * 2_000_000))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await incoming.discard()
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "key", ["", "..", "../../etc/passwd", "/etc/passwd", "x", "0" * 36, "0D6F6A8E-5A2C-4A53-9D8E-2F7B1C3E4A5D"]
)
async def test_a_foreign_key_reaches_no_file(storage: LocalStorage, key: str) -> None:
    for use in (storage.load(key), storage.remove(key)):
        with pytest.raises(NotRetryable) as error:
            await use
        assert error.value.reason == "bad_storage_key"
    with pytest.raises(NotRetryable):
        storage.receive(key)


async def test_only_the_service_may_look_in(storage: LocalStorage, tmp_path: Path) -> None:
    incoming = storage.receive(str(uuid.uuid4()))
    await incoming.write(b"secret")
    await incoming.keep()
    assert (tmp_path / "deep" / "storage").stat().st_mode & 0o077 == 0


async def test_a_disk_that_is_gone_is_an_outage_and_costs_no_document(storage: LocalStorage, tmp_path: Path) -> None:
    incoming = storage.receive(str(uuid.uuid4()))
    (tmp_path / "deep" / "storage" / "incoming").rmdir()
    await incoming.write(b"hello")
    with pytest.raises(Outage) as error:
        await incoming.keep()
    assert error.value.resource == "storage"


async def test_leftovers_are_cleared_away_and_documents_are_not(
    storage: LocalStorage, tmp_path: Path, home: Home, pool: Pool
) -> None:
    """Four files: a document's and an orphan, each old and young; and an upload that never ended."""
    old = time.time() - 2 * upkeep.ORPHANED_AFTER_SECONDS
    keys = [str(uuid.uuid4()) for _ in range(4)]
    for key in keys:
        incoming = storage.receive(key)
        await incoming.write(b"hello")
        await incoming.keep()
    unfinished = storage.receive(str(uuid.uuid4()))
    await unfinished.write(b"a" * 300_000)
    documents, orphans = keys[:2], keys[2:]
    for path in tmp_path.rglob("*"):
        if path.name in (documents[0], orphans[0]) or path.parent.name == "incoming":
            os.utime(path, (old, old))
    for key in documents:
        home.change(
            "insert into documents (id, tenant, sender, kind, content_type, size_bytes, storage_key, fingerprint)"
            " values (%s, 't', 's', 'text', 'text/plain', 5, %s, '')",
            key,
            key,
        )
    for name, (_, work) in upkeep.timers(
        DocumentsSettings(database_url="unused", storage_dir=tmp_path), storage
    ).items():
        async with pool.connection() as conn:
            await work(conn)
        assert "." in name
    assert files(tmp_path) == sorted([*documents, orphans[1]])
    await unfinished.discard()


async def test_a_file_that_vanishes_while_the_old_ones_are_looked_for_does_no_harm(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = sorted(str(uuid.uuid4()) for _ in range(2))
    for key in keys:
        incoming = storage.receive(key)
        await incoming.write(b"x")
        await incoming.keep()
    stat = Path.stat

    def vanishing(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == keys[0]:
            path.unlink()
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", vanishing)
    assert await storage.older_than(-60) == [keys[1]]
