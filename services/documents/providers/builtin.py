"""The built-in reader: real work without a network."""

import asyncio

from services.documents import fields
from services.documents.extraction import Extraction
from services.documents.providers.reading import Document, Reading

MODEL = "builtin-1"


class BuiltinReader:
    """Takes the text out of a PDF in the extraction pool, finds fields by rule, then checks them."""

    def __init__(self, extraction: Extraction) -> None:
        self._extraction = extraction

    async def extract(self, document: Document) -> Reading:
        text = document.text if document.pdf is None else await self._extraction.text("pdf", document.pdf)
        text = (text or "")[: fields.CHARACTERS]
        return Reading(tuple(await asyncio.to_thread(fields.find, text)), MODEL, text)

    async def check(self, document: Document, reading: Reading) -> Reading:
        text = reading.text if reading.text is not None else (await self.extract(document)).text or ""
        return Reading(tuple(await asyncio.to_thread(fields.check, text, reading.fields)), MODEL, text)

    async def aclose(self) -> None:
        """The extraction pool belongs to whoever made it."""
