"""Pure: which type a file's bytes are, told piece by piece as they stream by. Nothing is kept of them."""

import codecs
from typing import NoReturn

PDF = "application/pdf"
TEXT = "text/plain"
HTML = "text/html"
READABLE = "a PDF or a text in UTF-8"

_UNDECLARED = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_DECLARED_PDF = frozenset({PDF, "application/x-pdf"})
_PDF_MAGIC = b"%PDF-"
_PDF_HEADER_WITHIN = 1024
"""Readers accept a PDF whose header comes after up to this many bytes of something else."""
_FOREIGN = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"II*\x00": "a TIFF image",
    b"MM\x00*": "a TIFF image",
    b"PK\x03\x04": "a ZIP archive or an Office document",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"\x1f\x8b": "a gzip archive",
    b"{\\rtf": "an RTF document",
    b"\x7fELF": "a program",
}
_OTHER_UNICODE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


class Refused(Exception):
    """The bytes cannot be taken. `kind` is for programs, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Sniffer:
    """Feed every piece in order, then `finish`. Both raise Refused as soon as the content cannot be taken."""

    def __init__(self, declared: str | None, name: str | None) -> None:
        self._declared = (declared or "").partition(";")[0].strip().lower()
        self._name = (name or "").lower()
        self._head: bytes | None = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._decoded = 0
        self._blank = True
        self._type = TEXT
        if not (self._declared in _UNDECLARED | _DECLARED_PDF or self._declared.startswith("text/")):
            raise Refused("unknown-type", f"Files of type {self._declared[:80]} cannot be read; send {READABLE}.")

    def feed(self, piece: bytes) -> None:
        """Look at the next piece."""
        if self._head is not None:
            self._head += piece
            if len(self._head) < _PDF_HEADER_WITHIN:
                return
            piece, self._head = self._decide(self._head), None
        self._read_text(piece, final=False)

    def finish(self) -> str:
        """The content type. Call once, after the last piece."""
        if self._head is not None:
            if not self._head:
                raise Refused("empty", f"The file is empty (0 bytes); send {READABLE}.")
            rest, self._head = self._decide(self._head), None
            self._read_text(rest, final=False)
        self._read_text(b"", final=True)
        if self._decoder is not None and self._blank:
            raise Refused("empty", f"The file holds nothing but blanks; send {READABLE}.")
        return self._type

    def _decide(self, head: bytes) -> bytes:
        within = head.find(_PDF_MAGIC, 0, _PDF_HEADER_WITHIN)
        expected = self._declared in _DECLARED_PDF or (self._declared in _UNDECLARED and self._name.endswith(".pdf"))
        if within == 0 or (within > 0 and expected):
            if self._declared.startswith("text/"):
                raise Refused("type-mismatch", f"The file is a PDF, but was declared as {self._declared}.")
            self._type = PDF
            return b""
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise Refused("unknown-type", f"The file is {what}, which cannot be read; send {READABLE}.")
        if self._declared in _DECLARED_PDF:
            raise Refused("type-mismatch", "The file was declared as a PDF, but its content is not one.")
        for mark, encoding in _OTHER_UNICODE.items():
            if head.startswith(mark):
                raise Refused("not-utf-8", f"The text is in {encoding}; save it as UTF-8 and send it again.")
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
        if (
            self._declared == HTML
            or self._name.endswith((".html", ".htm"))
            or start.startswith((b"<!doctype html", b"<html"))
        ):
            self._type = HTML
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        return head

    def _read_text(self, piece: bytes, *, final: bool) -> None:
        if self._decoder is None:
            return
        held = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(piece, final)
        except UnicodeDecodeError as error:
            self._not_text(self._decoded - held + error.start)
        if "\0" in text:
            raise Refused("unknown-type", f"The file holds binary data, which cannot be read; send {READABLE}.")
        self._decoded += len(piece)
        self._blank = self._blank and not text.strip("\ufeff \t\r\n")

    def _not_text(self, position: int) -> NoReturn:
        if self._declared.startswith("text/") or self._name.endswith((".txt", ".md", ".csv", ".html", ".htm")):
            raise Refused(
                "not-utf-8", f"The text is not UTF-8 (at byte {position + 1}); save it as UTF-8 and send it again."
            ) from None
        raise Refused(
            "unknown-type",
            f"The file is neither a PDF nor text in UTF-8 (byte {position + 1} is not); send {READABLE}.",
        ) from None
