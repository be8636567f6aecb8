"""The jobs of the documents service: reading one document."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog

from messaging import erasure, outbox
from messaging.codec import Codec
from messaging.database import Connection, Pool
from messaging.errors import MessagingError, NotRetryable
from messaging.job import Handler, Job
from schemas.events import DocumentFailed, DocumentField, DocumentRead, DocumentReadingRequested
from services.documents import store, verdict
from services.documents.providers import Provider, Reading
from services.documents.records import Stored
from services.documents.sources import Sources

SOURCE = "documents"

ERASING = timedelta(hours=1)
"""How long after a sender's mark their documents may still be going. One that is missing later is missing."""

log = structlog.get_logger(__name__)


class ReadDocument:
    """Load, extract, check, write down. Running it again is harmless: only the run that holds the job's fence writes
    a result, and a document that has one is left alone.
    """

    def __init__(self, pool: Pool, codec: Codec, sources: Sources, provider: Provider, confidence_bar: float) -> None:
        self._pool = pool
        self._codec = codec
        self._sources = sources
        self._provider = provider
        self._bar = confidence_bar

    async def run(self, job: Job) -> None:
        """Read the document. Raises what sources and provider raise."""
        document_id = _document_id(job)
        stored = await self._begin(job, document_id)
        if stored is None:
            async with job.transaction():
                return
        document = await self._sources.load(stored)
        reading = await self._provider.check(document, await self._provider.extract(document))
        async with job.transaction() as conn:
            await self._finish(conn, job, document_id, reading)

    async def retrying(self, conn: Connection, job: Job, error: MessagingError, due_at: datetime) -> None:
        """The document shows that it waits, and why."""
        await store.note_retry(
            conn, job.key.tenant, _document_id(job), generation=job.generation, error=_for_people(error)
        )

    async def gave_up(self, conn: Connection, job: Job, error: MessagingError, attempts: int) -> None:
        """The document shows that it failed, and whoever listens is told."""
        try:
            document_id = _document_id(job)
        except NotRetryable:
            return
        tenant, sender = job.key.tenant, job.key.sender
        failed = await store.note_failure(
            conn,
            tenant,
            sender,
            document_id,
            generation=job.generation,
            attempts=attempts,
            error=_for_people(error),
        )
        if failed:
            event = DocumentFailed(
                document_id=str(document_id),
                tenant=tenant,
                sender=sender,
                reason=error.reason if isinstance(error, NotRetryable) else "gave_up",
                error=_for_people(error),
                attempts=attempts,
            )
            await self._tell(conn, event, job)

    async def _begin(self, job: Job, document_id: UUID) -> Stored | None:
        """The document, marked as being read; None when nothing is left to do. Raises NotRetryable."""
        tenant, sender = job.key
        async with self._pool.connection() as conn:
            stored = await store.begin_reading(
                conn, tenant, sender, document_id, generation=job.generation, attempt=job.attempt
            )
            if stored is None:
                await self._excuse(conn, job, document_id)
        return stored

    async def _excuse(self, conn: Connection, job: Job, document_id: UUID) -> None:
        """Raises NotRetryable unless the document was read before, or erased with all that its sender had."""
        known = await store.get(conn, job.key.tenant, document_id)
        if known is not None and known.sender == job.key.sender:
            return
        erased_at = (await erasure.when(conn, [job.key])).get(job.key)
        if known is None and erased_at is not None and erasure.before(erased_at + ERASING, job.headers):
            log.info("document.erased", document=str(document_id))
            return
        raise NotRetryable("There is no such document of this sender.", "unknown_document")

    async def _finish(self, conn: Connection, job: Job, document_id: UUID, reading: Reading) -> None:
        status = verdict.status_after_reading(reading.fields, self._bar)
        if not await store.finish_reading(conn, document_id, status, reading.fields, reading.model):
            return
        event = DocumentRead(
            document_id=str(document_id),
            tenant=job.key.tenant,
            sender=job.key.sender,
            status=status,
            fields=tuple(
                DocumentField(name=field.name, value=field.value, confidence=field.confidence)
                for field in reading.fields
            ),
            attempts=job.attempt,
            model=reading.model,
        )
        await self._tell(conn, event, job)

    async def _tell(self, conn: Connection, event: DocumentRead | DocumentFailed, job: Job) -> None:
        # Of a document that is about to be erased nothing may be said: this event would pass for new.
        erased_at = (await erasure.when(conn, [job.key])).get(job.key)
        if erased_at is not None and erasure.before(erased_at, job.headers):
            log.info("document.erased", document=event.document_id)
            return
        await outbox.add(conn, [self._codec.envelope(event, source=SOURCE, subject=event.document_id, key=job.key)])


def _document_id(job: Job) -> UUID:
    try:
        return UUID(job.event.document_id)
    except ValueError:
        raise NotRetryable("The job names no document.", "unknown_document") from None


def _for_people(error: MessagingError) -> str:
    return (str(error) or "Something went wrong.").replace("\0", "")[:1000]


HANDLERS: Mapping[type[Any], Callable[..., Handler]] = {
    DocumentReadingRequested: ReadDocument,
}
