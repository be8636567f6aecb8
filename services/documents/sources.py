"""A document's content, ready for a reader: from storage, or from the page it stands on."""

from messaging.errors import NotRetryable
from services.documents import content, markup
from services.documents.extraction import Extraction
from services.documents.pages import Pages
from services.documents.providers import Document
from services.documents.records import Stored
from services.documents.storage import Storage

MAX_CHARACTERS = 2_000_000
"""What is read of a very long text."""


class Sources:
    """Loads documents. Raises NotRetryable or Retryable as storage, pages and extraction do."""

    def __init__(self, storage: Storage, pages: Pages, extraction: Extraction) -> None:
        self._storage = storage
        self._pages = pages
        self._extraction = extraction

    async def load(self, stored: Stored) -> Document:
        """The content of a kept document, fetched afresh when it is a web address."""
        if stored.kind == "url":
            assert stored.url is not None
            page = await self._pages.fetch(stored.url)
            return await self._document(stored, page.content_type, page.content, page.encoding)
        if stored.storage_key is None:
            raise NotRetryable(
                f"The document's file was removed on {stored.file_removed_at:%Y-%m-%d}, after the time that files of "
                "settled documents are kept; hand the document in again.",
                "file_removed",
            )
        data = await self._storage.load(stored.storage_key)
        return await self._document(stored, stored.content_type, data, "utf-8")

    async def _document(self, stored: Stored, content_type: str, data: bytes, encoding: str | None) -> Document:
        name = stored.file_name or f"{stored.id}{'.pdf' if content_type == content.PDF else '.txt'}"
        if content_type == content.PDF:
            return Document(name, pdf=data)
        if content_type == content.HTML:
            return Document(name, text=await self._extraction.text("html", data, encoding))
        return Document(name, text=markup.decode(data, encoding)[:MAX_CHARACTERS].replace("\0", ""))
