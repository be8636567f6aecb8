"""Reads what a client sends to an OpenAI-compatible chat endpoint: instructions, texts and a file."""

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pypdfium2

from loadtest.corpus import REFERENCE

_DATA_URL = "data:application/pdf;base64,"


class InvalidRequest(Exception):
    """The provider refuses the request for good: 400. `code` is the machine-readable part of its answer."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request taken apart. The user's first part is the document; a check shows what was extracted beside it."""

    document: bytes | str
    beside: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the document as it was sent."""
        raw = self.document if isinstance(self.document, bytes) else self.document.encode()
        return hashlib.sha256(raw).hexdigest()

    @property
    def call(self) -> int:
        """1: extract the fields of a document. 2: check fields against it."""
        return 2 if self.beside else 1


def parse(body: object) -> Prompt:
    """Take a chat completion request apart. Raises InvalidRequest for one that is not well-formed."""
    if not isinstance(body, Mapping) or not isinstance(body.get("model"), str):
        raise InvalidRequest("you must provide a model parameter", "missing_required_parameter")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("'messages' must be a list with at least one message", "invalid_type")
    if body.get("stream"):
        raise InvalidRequest("this endpoint does not stream", "unsupported_value")
    shown = [_read(part) for message in messages for part in _parts(message) if message["role"] == "user"]
    if not shown:
        raise InvalidRequest("the user's message holds no document", "missing_required_parameter")
    document, *beside = shown
    return Prompt(document, tuple(part for part in beside if isinstance(part, str)))


def read_pdf(content: bytes) -> str:
    """The text of a PDF. Raises InvalidRequest when it cannot be opened. Not thread-safe, as PDFium is not."""
    try:
        file = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        raise InvalidRequest(f"The file could not be read as a PDF: {error}", "invalid_file") from error
    try:
        pages = []
        for page in file:
            text = page.get_textpage()
            pages.append(text.get_text_range().replace("\r\n", "\n"))
            text.close()
            page.close()
    finally:
        file.close()
    return "\n".join(pages)


def reference(text: str) -> str | None:
    """The invoice number in a text, if it has one."""
    found = REFERENCE.search(text)
    return found.group() if found else None


def _parts(message: object) -> Iterator[object]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest("every message needs a role", "invalid_type")
    content = message.get("content")
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from content
    else:
        raise InvalidRequest("every message needs a content", "invalid_type")


def _read(part: object) -> bytes | str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "file", "file": {"file_data": str(data)}}:
            return _decode(data)
        case _:
            raise InvalidRequest("a content part has an unknown type", "invalid_value")


def _decode(data: str) -> bytes:
    if not data.startswith(_DATA_URL):
        raise InvalidRequest(f"file_data must begin with {_DATA_URL}", "invalid_value")
    try:
        return base64.b64decode(data[len(_DATA_URL) :], validate=True)
    except binascii.Error as error:
        raise InvalidRequest("file_data is not base64", "invalid_base64") from error
