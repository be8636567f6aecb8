"""Taking a document in: its bytes into storage, then the row and its events in one statement, or nothing at all."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

import psycopg

from messaging.codec import Codec
from messaging.database import Pool, is_outage
from messaging.errors import Outage, OutboxFull
from messaging.message import Envelope, Key, new_id
from schemas.events import DocumentReadingRequested, DocumentReceived
from services.documents import content, store, submissions, uploads
from services.documents.records import Earlier, Outcome, Submission
from services.documents.settings import DocumentsSettings
from services.documents.storage import Incoming, Storage
from web import idempotency
from web.tokens import Identity

SOURCE = "documents"
EVENTS = (DocumentReadingRequested, DocumentReceived)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The document's id; `repeated` when it was taken in by an earlier request with the same key and body."""

    id: UUID
    repeated: bool


class Intake:
    """Takes documents in. `pool` is in autocommit: each statement is a transaction of its own."""

    def __init__(self, pool: Pool, storage: Storage, codec: Codec, settings: DocumentsSettings) -> None:
        self._pool = pool
        self._storage = storage
        self._codec = codec
        self._settings = settings

    async def file(
        self,
        who: Identity,
        idempotency_key: str | None,
        body: AsyncIterator[bytes],
        content_type: str,
        length: int | None,
    ) -> Receipt:
        """A multipart body, streamed into storage. Raises problems; nothing is left in storage then."""
        document_id = new_id()
        incoming = self._storage.receive(str(document_id))
        try:
            upload = await uploads.receive(body, content_type, length, incoming, self._settings.max_document_bytes)
            submission = Submission(
                id=document_id,
                tenant=who.tenant,
                sender=who.sub,
                kind="file",
                content_type=upload.content_type,
                size_bytes=upload.size,
                fingerprint=submissions.fingerprint("file", upload.digest, upload.name),
                file_name=upload.name,
                storage_key=str(document_id),
                idempotency_key=idempotency_key,
            )
        except BaseException:
            await incoming.discard()
            raise
        return await self._take(submission, incoming)

    async def text(self, who: Identity, idempotency_key: str | None, text: submissions.Text) -> Receipt:
        """A text sent in the request."""
        document_id = new_id()
        submission = Submission(
            id=document_id,
            tenant=who.tenant,
            sender=who.sub,
            kind="text",
            content_type=content.TEXT,
            size_bytes=len(text.content),
            fingerprint=submissions.fingerprint("text", text.content),
            storage_key=str(document_id),
            idempotency_key=idempotency_key,
        )
        incoming = self._storage.receive(str(document_id))
        await incoming.write(text.content)
        return await self._take(submission, incoming)

    async def link(self, who: Identity, idempotency_key: str | None, link: submissions.Link) -> Receipt:
        """A web address; its page is fetched by the job, not here."""
        submission = Submission(
            id=new_id(),
            tenant=who.tenant,
            sender=who.sub,
            kind="url",
            content_type=content.HTML,
            size_bytes=0,
            fingerprint=submissions.fingerprint("url", link.url.encode()),
            url=link.url,
            idempotency_key=idempotency_key,
        )
        return await self._take(submission, None)

    async def _take(self, submission: Submission, incoming: Incoming | None) -> Receipt:
        named = False  # whether a row may name the bytes in storage
        try:
            earlier = await self._earlier(submission)
            if earlier is not None:
                return _repeat(earlier, submission)
            if incoming is not None:
                await incoming.keep()
            # A statement whose answer is lost may have been carried out: only an answer that says otherwise lets the
            # bytes go. What is left over for good, a timer removes.
            named = True
            outcome = await self._accept(submission)
            if outcome is Outcome.REPEATED:
                earlier = await self._earlier(submission)
                if earlier is None:
                    # The one in the way was erased before it was read: the place is free.
                    outcome = await self._accept(submission)
            if outcome is not Outcome.ACCEPTED:
                named = False
        except OutboxFull:
            named = False
            raise
        except psycopg.Error as error:
            named = named and (error.sqlstate is None or is_outage(error))
            raise
        finally:
            if incoming is not None and not named:
                await incoming.discard()
        if outcome is Outcome.LIMIT_REACHED:
            raise submissions.too_many_waiting(self._settings.sender_limit)
        if outcome is Outcome.ACCEPTED:
            return Receipt(submission.id, repeated=False)
        if earlier is None:
            earlier = await self._earlier(submission)
        if earlier is None:
            raise Outage("Documents of this sender are being erased.", "documents")
        return _repeat(earlier, submission)

    async def _earlier(self, submission: Submission) -> Earlier | None:
        key = submission.idempotency_key
        if key is None:
            return None
        async with self._pool.connection() as conn:
            return await store.earlier(conn, submission.tenant, submission.sender, key)

    async def _accept(self, submission: Submission) -> Outcome:
        async with self._pool.connection() as conn:
            return await store.accept(conn, submission, self._envelopes(submission), self._settings.sender_limit)

    def _envelopes(self, submission: Submission) -> list[Envelope]:
        document_id, key = str(submission.id), Key(submission.tenant, submission.sender)
        job = DocumentReadingRequested(
            document_id=document_id,
            tenant=submission.tenant,
            sender=submission.sender,
            kind=submission.kind,
            content_type=submission.content_type,
            storage_key=submission.storage_key,
            url=submission.url,
            size_bytes=submission.size_bytes,
        )
        event = DocumentReceived(
            document_id=document_id,
            tenant=submission.tenant,
            sender=submission.sender,
            kind=submission.kind,
            content_type=submission.content_type,
            size_bytes=submission.size_bytes if submission.storage_key is not None else None,
        )
        return [self._codec.envelope(said, source=SOURCE, subject=document_id, key=key) for said in (event, job)]


def _repeat(earlier: Earlier, submission: Submission) -> Receipt:
    if earlier.fingerprint != submission.fingerprint:
        raise idempotency.reused("document")
    return Receipt(earlier.id, repeated=True)
