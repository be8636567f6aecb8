"""The reading job against the real database: each outcome, each written once, by the run that holds the job."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from loadtest import pdf
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import Fenced, NotRetryable, Retryable
from messaging.job import Job
from messaging.message import TYPE, VERSION, Key
from schemas.events import DocumentFailed, DocumentRead, DocumentReadingRequested
from services.documents import store
from services.documents.extraction import Extraction
from services.documents.fields import Field
from services.documents.handlers import HANDLERS, ReadDocument
from services.documents.pages import Pages
from services.documents.providers import BuiltinReader, Document, Provider, Reading
from services.documents.records import Submission
from services.documents.sources import Sources
from services.documents.storage import LocalStorage
from tests.fixtures.origin import Answer, serving
from tests.fixtures.processes import Home
from web.outbound import Resolver

SURE = (Field("supplier", "Acme", 0.95), Field("total", "1.00", 0.9))
UNSURE = (Field("supplier", "Acme", 0.95), Field("total", "1.00", 0.5))
INVOICE = [
    "INVOICE",
    "Supplier: Acme",
    "Invoice number: A-1",
    "Date: 2026-05-04",
    "Total: 12.50 EUR",
    "Currency: EUR",
]


@dataclass
class Scripted:
    """A reader that says what it is told and remembers what it was shown."""

    checked: tuple[Field, ...] | Exception = SURE
    shown: list[Document] = field(default_factory=list)
    before_answering: Callable[[], Awaitable[None]] | None = None

    async def extract(self, document: Document) -> Reading:
        self.shown.append(document)
        return Reading((Field("supplier", "?", 0.1),), "scripted")

    async def check(self, document: Document, reading: Reading) -> Reading:
        assert reading.fields[0].value == "?", "the check is given what was extracted"
        self.shown.append(document)
        if self.before_answering is not None:
            await self.before_answering()
        if isinstance(self.checked, Exception):
            raise self.checked
        return Reading(self.checked, "scripted")

    async def aclose(self) -> None: ...


@dataclass
class Desk:
    """Documents of one sender, and jobs for them."""

    home: Home
    pool: Pool
    codec: Codec
    storage: LocalStorage
    extraction: Extraction
    tenant: str
    allow: frozenset[str] = frozenset()

    def handler(self, provider: Provider) -> ReadDocument:
        pages = Pages(allow=self.allow, max_bytes=100_000, timeout_seconds=2, resolve=Resolver(1))
        return ReadDocument(self.pool, self.codec, Sources(self.storage, pages, self.extraction), provider, 0.8)

    async def document(
        self, content: bytes = b"Total: 1.00", content_type: str = "text/plain", url: str | None = None
    ) -> Job:
        """A kept document, and the first run of its job."""
        document_id = uuid.uuid4()
        if url is None:
            incoming = self.storage.receive(str(document_id))
            await incoming.write(content)
            await incoming.keep()
        submission = Submission(
            id=document_id,
            tenant=self.tenant,
            sender="ann",
            kind="file" if url is None else "url",
            content_type=content_type,
            size_bytes=len(content),
            fingerprint=b"",
            file_name="invoice.pdf",
            storage_key=None if url else str(document_id),
            url=url,
        )
        async with self.pool.connection() as conn:
            await store.accept(conn, submission, [], 100)
        return self.run_of(str(document_id))

    def run_of(self, document_id: str, *, attempt: int = 1, generation: int = 0, fenced: bool = False) -> Job:
        event = DocumentReadingRequested(
            document_id=document_id,
            tenant=self.tenant,
            sender="ann",
            kind="file",
            content_type="text/plain",
            storage_key="../../../etc/passwd",  # what a message says of the file is not believed
            url="http://127.0.0.1/",
            size_bytes=1,
        )

        async def finish(_: Connection) -> bool:
            return not fenced

        return Job("m1", generation, Key(self.tenant, "ann"), attempt, event, {}, pool=self.pool, finish=finish)

    def row(self, job: Job) -> dict[str, Any]:
        ((row,),) = self.home.rows(
            "select to_jsonb(documents) from documents where id = %s::uuid", job.event.document_id
        )
        assert isinstance(row, dict)
        return row

    async def events(self, job: Job) -> list[Any]:
        rows = self.home.rows(
            "select type, version, payload from outbox where subject = %s order by seq", job.event.document_id
        )
        found = []
        for type_, version, payload in rows:
            assert isinstance(payload, bytes)
            headers = {TYPE: str(type_).encode(), VERSION: str(version).encode()}
            found.append(await self.codec.decode(headers, payload, {DocumentRead, DocumentFailed}))
        return found


@pytest.fixture
async def desk(home: Home, pool: Pool, codec: Codec, tenant: str, tmp_path: Path) -> AsyncIterator[Desk]:
    storage = LocalStorage(tmp_path / "storage")
    await storage.open()
    extraction = Extraction(1, 20.0)
    await extraction.start()
    yield Desk(home, pool, codec, storage, extraction, tenant)
    await extraction.close()
    storage.close()


@pytest.mark.parametrize(
    ("found", "status"), [(SURE, "approved"), (UNSURE, "waiting_for_review"), ((), "waiting_for_review")]
)
async def test_a_reading_is_written_down_with_its_event(desk: Desk, found: tuple[Field, ...], status: str) -> None:
    job = await desk.document()
    provider = Scripted(found)
    await desk.handler(provider).run(job)
    row = desk.row(job)
    assert (row["status"], row["attempts"], row["model"], row["error"]) == (status, 1, "scripted", None)
    assert [(f["name"], f["value"], f["confidence"]) for f in row["fields"]] == [
        (f.name, f.value, f.confidence) for f in found
    ]
    (event,) = await desk.events(job)
    assert isinstance(event, DocumentRead)
    assert (event.status, event.attempts, event.sender, event.model) == (status, 1, "ann", "scripted")
    assert [(f.name, f.value) for f in event.fields] == [(f.name, f.value) for f in found]
    assert len(provider.shown) == 2
    assert provider.shown[0].text == "Total: 1.00"
    assert job.finished


async def test_while_it_is_read_the_document_says_so(desk: Desk) -> None:
    job = await desk.document()
    seen: list[tuple[str, int]] = []

    async def look() -> None:
        row = desk.row(job)
        seen.append((row["status"], row["attempts"]))

    await desk.handler(Scripted(before_answering=look)).run(job)
    assert seen == [("reading", 1)]


@pytest.mark.parametrize("fault", [Retryable("The model is busy."), KeyError("a bug")])
async def test_a_failed_run_leaves_no_effect_and_the_next_one_has_it(desk: Desk, fault: Exception) -> None:
    job = await desk.document()
    with pytest.raises(type(fault)):
        await desk.handler(Scripted(fault)).run(job)
    assert await desk.events(job) == []
    assert not job.finished
    async with desk.pool.connection() as conn:
        await desk.handler(Scripted()).retrying(conn, job, Retryable("The model is busy."), datetime.now(UTC))
    assert (desk.row(job)["status"], desk.row(job)["error"]) == ("retrying", "The model is busy.")
    again = desk.run_of(job.event.document_id, attempt=2)
    await desk.handler(Scripted()).run(again)
    assert (desk.row(job)["status"], desk.row(job)["error"], desk.row(job)["attempts"]) == ("approved", None, 2)
    assert len(await desk.events(job)) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(NotRetryable("The PDF is damaged.", "malformed_pdf"), "malformed_pdf"), (Retryable("Still busy."), "gave_up")],
)
async def test_giving_up_shows_and_tells_why_once(desk: Desk, fault: Retryable | NotRetryable, reason: str) -> None:
    job = await desk.document()
    handler = desk.handler(Scripted(fault))
    with pytest.raises(type(fault)):
        await handler.run(job)
    for _ in range(2):
        async with desk.pool.connection() as conn:
            await handler.gave_up(conn, job, fault, 4)
    assert (desk.row(job)["status"], desk.row(job)["error"], desk.row(job)["attempts"]) == ("failed", str(fault), 4)
    (event,) = await desk.events(job)
    assert isinstance(event, DocumentFailed)
    assert (event.reason, event.error, event.attempts, event.sender) == (reason, str(fault), 4, "ann")


async def test_a_run_that_was_taken_over_writes_nothing(desk: Desk) -> None:
    job = await desk.document()
    with pytest.raises(Fenced):
        await desk.handler(Scripted()).run(desk.run_of(job.event.document_id, fenced=True))
    assert desk.row(job)["status"] == "reading"
    assert await desk.events(job) == []


async def test_a_document_that_was_read_is_left_alone(desk: Desk) -> None:
    job = await desk.document()
    await desk.handler(Scripted(UNSURE)).run(job)
    desk.home.change("update documents set status = 'rejected' where id = %s::uuid", job.event.document_id)
    provider, again = Scripted(SURE), desk.run_of(job.event.document_id, attempt=2)
    await desk.handler(provider).run(again)
    assert (desk.row(job)["status"], provider.shown, again.finished) == ("rejected", [], True)
    async with desk.pool.connection() as conn:
        await desk.handler(provider).gave_up(conn, again, Retryable("late"), 2)
        await desk.handler(provider).retrying(conn, again, Retryable("late"), datetime.now(UTC))
    assert desk.row(job)["status"] == "rejected"
    assert len(await desk.events(job)) == 1


async def test_a_failed_document_is_read_again_only_in_a_new_generation(desk: Desk) -> None:
    job = await desk.document()
    async with desk.pool.connection() as conn:
        await desk.handler(Scripted()).gave_up(conn, job, Retryable("Busy."), 4)
    provider = Scripted()
    await desk.handler(provider).run(desk.run_of(job.event.document_id, attempt=2))
    assert (desk.row(job)["status"], provider.shown) == ("failed", [])
    await desk.handler(provider).run(desk.run_of(job.event.document_id, generation=1))
    assert (desk.row(job)["status"], desk.row(job)["attempts"], desk.row(job)["error"]) == ("approved", 1, None)
    assert [type(event) for event in await desk.events(job)] == [DocumentFailed, DocumentRead]


async def test_runs_at_the_same_time_leave_one_result(desk: Desk) -> None:
    """Without a fence between them at all, the row itself lets only the first one write."""
    job = await desk.document()
    runs = [desk.run_of(job.event.document_id, attempt=1) for _ in range(5)]
    await asyncio.gather(*(desk.handler(Scripted()).run(run) for run in runs))
    assert len(await desk.events(job)) == 1


@pytest.mark.parametrize(
    "document_id", ["0d6f6a8e-5a2c-4a53-9d8e-2f7b1c3e4a5d", "", "x", "../../../etc/passwd", "0" * 500]
)
async def test_a_job_for_no_document_is_for_good(desk: Desk, document_id: str) -> None:
    handler, job = desk.handler(Scripted()), desk.run_of(document_id)
    with pytest.raises(NotRetryable) as error:
        await handler.run(job)
    assert error.value.reason == "unknown_document"
    async with desk.pool.connection() as conn:
        await handler.gave_up(conn, job, error.value, 1)
    assert await desk.events(job) == []


async def test_a_job_cannot_name_another_senders_document(desk: Desk) -> None:
    job = await desk.document()
    stranger = desk.run_of(job.event.document_id)
    stranger.key = Key(desk.tenant, "bob")
    with pytest.raises(NotRetryable):
        await desk.handler(Scripted()).run(stranger)
    async with desk.pool.connection() as conn:
        await desk.handler(Scripted()).gave_up(conn, stranger, NotRetryable("no"), 1)
    assert desk.row(job)["status"] == "queued"


async def test_a_file_that_is_gone_from_storage_is_for_good(desk: Desk) -> None:
    job = await desk.document()
    await desk.storage.remove(job.event.document_id)
    with pytest.raises(NotRetryable) as error:
        await desk.handler(Scripted()).run(job)
    assert error.value.reason == "file_missing"


@pytest.mark.parametrize("form", ["pdf", "text", "html file", "page", "page that is a PDF"])
async def test_the_builtin_reader_reads_each_kind_of_document(desk: Desk, form: str) -> None:
    whole = pdf.write([INVOICE], identity=b"0" * 16).data
    html = ("<html><body>" + "".join(f"<p>{line}</p>" for line in INVOICE)).encode()
    respond = {
        "page": Answer(body=html, headers={"Content-Type": "text/html"}),
        "page that is a PDF": Answer(body=whole, headers={"Content-Type": "application/pdf"}),
    }
    files = {
        "pdf": (whole, "application/pdf"),
        "text": ("\n".join(INVOICE).encode(), "text/plain"),
        "html file": (html, "text/html"),
    }
    async with serving(lambda _: respond[form]) as origin:
        desk.allow = frozenset({f"127.0.0.1:{origin.port}"})
        job = await (desk.document(*files[form]) if form in files else desk.document(b"", "text/html", origin.url))
        await desk.handler(BuiltinReader(desk.extraction)).run(job)
    found = {f["name"]: f["value"] for f in desk.row(job)["fields"]}
    assert found == {"supplier": "Acme", "number": "A-1", "date": "2026-05-04", "currency": "EUR", "total": "12.50"}
    assert desk.row(job)["status"] == "approved"


async def test_the_builtin_reader_fails_on_a_broken_pdf(desk: Desk) -> None:
    whole = pdf.write([INVOICE], identity=b"0" * 16).data
    job = await desk.document(whole[: len(whole) // 2], "application/pdf")
    with pytest.raises(NotRetryable, match="breaks off"):
        await desk.handler(BuiltinReader(desk.extraction)).run(job)


def test_every_job_of_the_service_has_its_handler() -> None:
    assert dict(HANDLERS) == {DocumentReadingRequested: ReadDocument}
