"""What goes into a reader and what comes out of it."""

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from services.documents.fields import Field


@dataclass(frozen=True)
class Document:
    """A document's content: either `pdf` holds the file, or `text` the words (a page's text included)."""

    name: str
    pdf: bytes | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        if (self.pdf is None) == (self.text is None):
            raise ValueError("a document is either a PDF or a text")

    @cached_property
    def data_url(self) -> str:
        """The PDF as a data URL, made once for both calls."""
        return "data:application/pdf;base64," + base64.b64encode(self.pdf or b"").decode("ascii")


@dataclass(frozen=True, slots=True)
class Reading:
    """Fields, the model that found them, and the text they were found in where the reader knows it."""

    fields: tuple[Field, ...]
    model: str
    text: str | None = None


class Provider(Protocol):
    """A reader. Safe to use from many tasks."""

    async def extract(self, document: Document) -> Reading:
        """Find the fields."""
        ...

    async def check(self, document: Document, reading: Reading) -> Reading:
        """Hold found fields against the document: correct them, and say how sure each is."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...
