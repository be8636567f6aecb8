"""A multipart body streamed into storage: parsed, judged and hashed piece by piece, never held as a whole."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from services.documents import content, submissions
from services.documents.storage import Incoming
from web.problems import Problem, bad_input

OVERHEAD_BYTES = 16 * 1024
"""What boundaries and part headers may add to the file."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was written to its `Incoming` and not yet kept. `digest` is its SHA-256."""

    name: str | None
    content_type: str
    size: int
    digest: bytes


async def receive(
    body: AsyncIterator[bytes], content_type: str, length: int | None, incoming: Incoming, max_bytes: int
) -> Upload:
    """Stream the part named "file" of a multipart body into `incoming`.

    `length` is the body's declared length in bytes. Raises a 4xx problem naming the part, as soon as it is known;
    then, as after every other failure, the caller discards `incoming`.
    """
    if length is not None and length > max_bytes + OVERHEAD_BYTES:
        raise submissions.too_large("file", max_bytes)
    form = _Form(content_type)
    seen = 0
    digest, size = hashlib.sha256(), 0
    async for chunk in body:
        seen += len(chunk)
        if seen > max_bytes + OVERHEAD_BYTES:
            raise submissions.too_large("file", max_bytes)
        for piece in form.feed(chunk):
            size += len(piece)
            if size > max_bytes:
                raise submissions.too_large("file", max_bytes)
            form.sniff(piece)
            digest.update(piece)
            await incoming.write(piece)
    if not seen:
        raise submissions.empty_body()
    kind = form.finish()
    return Upload(form.name, kind, size, digest.digest())


class _Form:
    """The multipart parser's callbacks, turned into the pieces of the one file we want."""

    def __init__(self, content_type: str) -> None:
        self.name: str | None = None
        self._sniffer: content.Sniffer | None = None
        self._headers: dict[bytes, bytes] = {}
        self._header = (b"", b"")
        self._in_file = False
        self._ended = False
        self._pieces: list[bytes] = []
        self._refusal: Problem | None = None
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise bad_input("Content-Type", "bad-multipart", "A multipart body needs a boundary in its Content-Type.")
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._data,
                    "on_end": self._end,
                },
            )
        except FormParserError:
            raise _malformed() from None

    def feed(self, chunk: bytes) -> list[bytes]:
        """The pieces of the file in this chunk."""
        self._pieces = []
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise _malformed() from None
        return self._pieces

    def sniff(self, piece: bytes) -> None:
        assert self._sniffer is not None
        try:
            self._sniffer.feed(piece)
        except content.Refused as refused:
            raise bad_input("file", refused.kind, str(refused)) from None

    def finish(self) -> str:
        """The file's content type, once the body has ended."""
        if not self._ended:
            raise bad_input("body", "cut-off", "The multipart body breaks off before its end; send it again.")
        if self._sniffer is None:
            raise bad_input("file", "missing", 'There is no part named "file" in the body.')
        try:
            return self._sniffer.finish()
        except content.Refused as refused:
            raise bad_input("file", refused.kind, str(refused)) from None

    def _part_begins(self) -> None:
        self._headers = {}
        self._header = (b"", b"")
        self._in_file = False

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], self._header[1])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _header_ends(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = (b"", b"")

    def _headers_end(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field in ("text", "url"):
            raise submissions.not_a_part(field)
        if field == "file" and self._sniffer is not None:
            raise submissions.two_kinds(field)
        if field != "file":
            raise submissions.unknown_field(field or "body")
        sent = options.get(b"filename", b"").decode("utf-8", "replace")
        self.name = submissions.file_name(sent)
        declared = self._headers.get(b"content-type", b"").decode("latin-1")
        try:
            self._sniffer = content.Sniffer(declared, self.name)
        except content.Refused as refused:
            raise bad_input("file", refused.kind, str(refused)) from None
        self._in_file = True

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._pieces.append(data[start:end])

    def _end(self) -> None:
        self._ended = True


def _malformed() -> Problem:
    return bad_input("body", "bad-multipart", "The multipart body is malformed; send it with an HTTP library's help.")
