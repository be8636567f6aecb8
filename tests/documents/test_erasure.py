"""Erasing a sender: documents, files and events go, and nothing that was on its way brings them back."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from messaging import erasure as messaging_erasure
from messaging import migrate
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.erasure import Told
from messaging.errors import NotRetryable, Retryable
from messaging.job import Job
from messaging.message import Key
from schemas.events import DocumentReadingRequested
from services.documents import erasure, store
from services.documents.extraction import Extraction
from services.documents.fields import Field
from services.documents.handlers import ReadDocument
from services.documents.pages import Pages
from services.documents.providers import Document, Reading
from services.documents.records import Submission
from services.documents.sources import Sources
from services.documents.storage import LocalStorage
from tests.documents.conftest import Face
from tests.fixtures.processes import Home
from web.outbound import Resolver

NOTHING = {
    "documents": 0,
    "stored files": 0,
    "events in the outbox": 0,
    "events Kafka refused": 0,
    "runs of jobs": 0,
}


@pytest.fixture
async def owner(home: Home) -> AsyncIterator[Connection]:
    """As `workbot erase` connects."""
    conninfo = make_conninfo(home.admin, options=f"-c role={migrate.OWNER}")
    async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as conn:
        yield conn


def ignore(kind: str, more: int) -> None: ...


async def erase_now(conn: Connection, storage: LocalStorage, who: Key, told: Told = ignore) -> dict[str, int]:
    """All that there is by now, as the command does for every service."""
    now = await messaging_erasure.moment(conn)
    await messaging_erasure.mark(conn, who, now)
    return await erasure.erase(conn, storage, who, now, told)


async def erase(conn: Connection, face: Face, who: Key) -> dict[str, int]:
    told: dict[str, int] = {}

    def tell(kind: str, more: int) -> None:
        told[kind] = told.get(kind, 0) + more

    storage = LocalStorage(face.storage)
    try:
        gone = await erase_now(conn, storage, who, tell)
    finally:
        storage.close()
    assert {kind: told.get(kind, 0) for kind in gone} == gone
    return gone


async def test_all_that_a_sender_handed_in_goes_and_nothing_of_anybody_else(
    owner: Connection, home: Home, face: Face, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob in the same tenant and Ann in another keep theirs. Batches of two: the last is short."""
    monkeypatch.setattr(erasure, "_BATCH", 2)
    others = (Key(tenant, "bob"), Key(f"{tenant}-b", "ann"))
    for who in (Key(tenant, "ann"), *others):
        with face.client(who.sender, who.tenant) as client:
            for n in range(4):
                assert client.post("/api/documents", json={"text": f"Total: {n}"}).status_code == 202
            client.post("/api/documents", json={"url": "https://example.com/"})
    files = face.files()
    whole = NOTHING | {"documents": 5, "stored files": 4, "events in the outbox": 10}
    ann = Key(tenant, "ann")
    assert await erasure.count(owner, ann) == whole
    assert await erase(owner, face, ann) == whole
    assert await erasure.count(owner, ann) == NOTHING
    assert await erase(owner, face, ann) == NOTHING
    assert len(files) - len(face.files()) == 4
    for who in others:
        assert await erasure.count(owner, who) == whole
        with face.client(who.sender, who.tenant) as client:
            assert len(client.get("/api/documents").json()["items"]) == 5
    with face.client("ann", tenant) as client:
        assert client.get("/api/documents").json()["items"] == []


async def test_an_idempotency_key_is_forgotten_with_its_document(owner: Connection, face: Face, tenant: str) -> None:
    headers = {"Idempotency-Key": "42"}
    with face.client("ann", tenant) as ann:
        first = ann.post("/api/documents", json={"text": "x"}, headers=headers).json()["id"]
        assert ann.post("/api/documents", json={"text": "x"}, headers=headers).json()["id"] == first
        await erase(owner, face, Key(tenant, "ann"))
        again = ann.post("/api/documents", json={"text": "x"}, headers=headers)
        assert (again.status_code, again.json()["id"] == first) == (202, False)
        assert ann.get(again.json()["href"]).status_code == 200


class Interrupted:
    """A reader in whose middle something happens."""

    def __init__(self, then: Callable[[], Awaitable[None]], fault: Exception | None = None) -> None:
        self._then = then
        self._fault = fault

    async def extract(self, document: Document) -> Reading:
        return Reading((), "scripted")

    async def check(self, document: Document, reading: Reading) -> Reading:
        await self._then()
        if self._fault is not None:
            raise self._fault
        return Reading((Field("total", "1.00", 0.9),), "scripted")

    async def aclose(self) -> None: ...


async def nothing_happens() -> None: ...


class Desk:
    """Ann's one document, and the runs of its job."""

    def __init__(self, pool: Pool, codec: Codec, storage: LocalStorage, tenant: str) -> None:
        self.pool = pool
        self.codec = codec
        self.storage = storage
        self.ann = Key(tenant, "ann")
        self.document_id = uuid.uuid4()

    async def hand_in(self) -> None:
        incoming = self.storage.receive(str(self.document_id))
        await incoming.write(b"Total: 1.00")
        await incoming.keep()
        submission = Submission(
            id=self.document_id,
            tenant=self.ann.tenant,
            sender="ann",
            kind="file",
            content_type="text/plain",
            size_bytes=11,
            fingerprint=b"",
            storage_key=str(self.document_id),
        )
        async with self.pool.connection() as conn:
            await store.accept(conn, submission, [], 100)

    def handler(
        self, then: Callable[[], Awaitable[None]] = nothing_happens, fault: Exception | None = None
    ) -> ReadDocument:
        pages = Pages(allow=frozenset(), max_bytes=1000, timeout_seconds=2, resolve=Resolver(1))
        sources = Sources(self.storage, pages, Extraction(1, 20.0))
        return ReadDocument(self.pool, self.codec, sources, Interrupted(then, fault), 0.8)

    def job(self, attempt: int = 1) -> Job:
        event = DocumentReadingRequested(
            document_id=str(self.document_id),
            tenant=self.ann.tenant,
            sender="ann",
            kind="file",
            content_type="text/plain",
            storage_key=str(self.document_id),
            url=None,
            size_bytes=11,
        )

        async def finish(_: Connection) -> bool:
            return True

        return Job("m1", 0, self.ann, attempt, event, {}, pool=self.pool, finish=finish)


@pytest.fixture
async def desk(pool: Pool, codec: Codec, tenant: str, tmp_path: Path) -> AsyncIterator[Desk]:
    storage = LocalStorage(tmp_path / "storage")
    await storage.open()
    desk = Desk(pool, codec, storage, tenant)
    await desk.hand_in()
    yield desk
    storage.close()


@pytest.mark.parametrize("attempt", [1, 2], ids=["queued", "retrying"])
async def test_a_job_whose_document_was_erased_ends_quietly(owner: Connection, desk: Desk, attempt: int) -> None:
    await erase_now(owner, desk.storage, desk.ann)
    job = desk.job(attempt)
    await desk.handler().run(job)
    assert job.finished
    assert await erasure.count(owner, desk.ann) == NOTHING


async def test_a_job_for_no_document_of_a_sender_who_was_not_erased_is_a_dead_letter(desk: Desk) -> None:
    desk.document_id = uuid.uuid4()
    with pytest.raises(NotRetryable, match="no such document"):
        await desk.handler().run(desk.job())


async def test_a_reading_under_way_brings_nothing_back(owner: Connection, desk: Desk) -> None:
    """Its row goes while the provider reads: neither result, nor event, nor file."""

    async def then() -> None:
        gone = await erase_now(owner, desk.storage, desk.ann)
        assert gone == NOTHING | {"documents": 1, "stored files": 1}

    job = desk.job()
    await desk.handler(then).run(job)
    assert job.finished
    assert await erasure.count(owner, desk.ann) == NOTHING


@pytest.mark.parametrize("fault", [NotRetryable("Damaged."), Retryable("Busy.")])
async def test_nor_does_one_that_fails(owner: Connection, desk: Desk, fault: NotRetryable | Retryable) -> None:
    async def then() -> None:
        await erase_now(owner, desk.storage, desk.ann)

    job, handler = desk.job(), desk.handler(then, fault)
    with pytest.raises(type(fault)):
        await handler.run(job)
    async with desk.pool.connection() as conn:
        await handler.gave_up(conn, job, fault, 1)
    assert await erasure.count(owner, desk.ann) == NOTHING


async def test_a_result_between_the_mark_and_the_erasing_is_told_to_nobody(
    owner: Connection, home: Home, desk: Desk
) -> None:
    """The document will go; an event of its result would happen after the moment, and pass for new."""
    moment = await messaging_erasure.moment(owner)
    await messaging_erasure.mark(owner, desk.ann, moment)
    job = desk.job()
    await desk.handler().run(job)
    assert job.finished
    assert await erasure.count(owner, desk.ann) == NOTHING | {"documents": 1, "stored files": 1}
    gone = await erasure.erase(owner, desk.storage, desk.ann, moment, ignore)
    assert gone == NOTHING | {"documents": 1, "stored files": 1}


async def test_what_is_handed_in_after_the_moment_stays_whole(
    owner: Connection, home: Home, face: Face, tenant: str
) -> None:
    """With its job and its events, all of one time."""
    ann = Key(tenant, "ann")
    with face.client("ann", tenant) as client:
        client.post("/api/documents", json={"text": "before"})
        moment = await messaging_erasure.moment(owner)
        await messaging_erasure.mark(owner, ann, moment)
        after = client.post("/api/documents", json={"text": "after"}).json()["id"]
        storage = LocalStorage(face.storage)
        gone = await erasure.erase(owner, storage, ann, moment, ignore)
        storage.close()
        assert gone == NOTHING | {"documents": 1, "stored files": 1, "events in the outbox": 2}
        assert [item["id"] for item in client.get("/api/documents").json()["items"]] == [after]
        assert after in face.files()
    assert await erasure.count(owner, ann) == gone
    rows = home.rows(
        "select count(*), count(distinct occurred_at), bool_and(occurred_at = created_at) from outbox"
        " join documents on documents.id::text = subject where key = %s",
        str(ann),
    )
    assert rows == [(2, 1, True)]


async def test_a_result_that_is_being_written_is_waited_for_and_goes_with_the_rest(
    owner: Connection, home: Home, desk: Desk
) -> None:
    """The run holds the document's row and has its event in the outbox, but has not committed."""
    held, go_on = asyncio.Event(), asyncio.Event()

    async def finish(conn: Connection) -> bool:
        held.set()
        await go_on.wait()
        return True

    job = desk.job()
    job.finish = finish
    reading = asyncio.create_task(desk.handler().run(job))
    await held.wait()
    erasing = asyncio.create_task(erase_now(owner, desk.storage, desk.ann))
    async with asyncio.timeout(30):
        while home.rows(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        ) == [(0,)]:
            await asyncio.sleep(0.01)
    go_on.set()
    await reading
    assert await erasing == NOTHING | {"documents": 1, "stored files": 1, "events in the outbox": 1}
    assert await erasure.count(owner, desk.ann) == NOTHING
