"""A small PDF writer: text pages in Helvetica, and optionally a grey scan image that only adds weight.

The catalog and the page tree are written last, as scanners and streaming writers do: an upload that breaks off
loses them, and no reader can rebuild the document from what is left.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

HEADER = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
_SCAN_SIDE = 128


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file, and the offset at which its structure (page tree, catalog, xref) begins."""

    data: bytes
    structure_at: int


def write(pages: Sequence[Sequence[str]], *, identity: bytes, scan: bytes = b"", compress: bool = True) -> Written:
    """A PDF of the given pages of lines (Latin-1). `scan` is 8-bit grey data, placed small on the first page."""
    body = _Body(identity)
    font = body.add(b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
    images = []
    if scan:
        rows = max(1, len(scan) // _SCAN_SIDE)
        scan = scan[: rows * _SCAN_SIDE].ljust(rows * _SCAN_SIDE, b"\xff")
        shape = b"/Type/XObject/Subtype/Image/Width %d/Height %d" % (_SCAN_SIDE, rows)
        images.append(body.add_stream(scan, shape + b"/ColorSpace/DeviceGray/BitsPerComponent 8", compress=False))
    contents = [
        body.add_stream(_page_content(lines, scan=bool(scan) and number == 0), compress=compress)
        for number, lines in enumerate(pages)
    ]
    structure_at = len(body.data)
    tree = body.next_number + len(contents)
    xobjects = b"/XObject<</Scan %d 0 R>>" % images[0] if images else b""
    kids = [
        body.add(
            b"<</Type/Page/Parent %d 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F1 %d 0 R>>%s>>/Contents %d 0 R>>"
            % (tree, font, xobjects if number == 0 else b"", content)
        )
        for number, content in enumerate(contents)
    ]
    body.add(b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(b"%d 0 R" % kid for kid in kids)))
    root = body.add(b"<</Type/Catalog/Pages %d 0 R>>" % tree)
    return Written(body.finish(root), structure_at)


class _Body:
    """Numbered objects and where each begins. The identity comes first, so that no two files begin alike."""

    def __init__(self, identity: bytes) -> None:
        self._identity = identity.hex().encode()
        self.data = bytearray(HEADER + b"%% %s\n" % self._identity)
        self._offsets: list[int] = []

    @property
    def next_number(self) -> int:
        return len(self._offsets) + 1

    def add(self, content: bytes) -> int:
        number = self.next_number
        self._offsets.append(len(self.data))
        self.data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
        return number

    def add_stream(self, content: bytes, entries: bytes = b"", *, compress: bool = True) -> int:
        if compress:
            content, entries = zlib.compress(content), entries + b"/Filter/FlateDecode"
        return self.add(b"<<%s/Length %d>>\nstream\n%s\nendstream" % (entries, len(content), content))

    def finish(self, root: int) -> bytes:
        start = len(self.data)
        self.data += b"xref\n0 %d\n0000000000 65535 f \n" % self.next_number
        for offset in self._offsets:
            self.data += b"%010d 00000 n \n" % offset
        self.data += b"trailer\n<</Size %d/Root %d 0 R/ID[<%s><%s>]>>\n" % (
            self.next_number,
            root,
            self._identity,
            self._identity,
        )
        self.data += b"startxref\n%d\n%%%%EOF\n" % start
        return bytes(self.data)


def _page_content(lines: Sequence[str], *, scan: bool) -> bytes:
    shown = [b"BT /F1 11 Tf 14 TL 56 786 Td"]
    shown += [b"(%s) Tj T*" % _escape(line) for line in lines]
    shown.append(b"ET")
    if scan:
        shown.append(b"q 96 0 0 96 440 60 cm /Scan Do Q")
    return b"\n".join(shown)


def _escape(line: str) -> bytes:
    raw = line.encode("latin-1")
    return raw.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
