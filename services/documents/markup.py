"""The readable text of a web page: block by block, without scripts, styles and the page's furniture."""

import codecs
import re
from collections import Counter
from html.parser import HTMLParser

from messaging.errors import NotRetryable

MAX_CHARACTERS = 2_000_000

_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "nav", "iframe", "object", "select"})
_BLOCKS = frozenset(
    {"address", "article", "aside", "blockquote", "body", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption"}
    | {"figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "ol", "p", "pre"}
    | {"section", "table", "tbody", "tfoot", "thead", "title", "tr", "ul"}
)
_CELLS = frozenset({"td", "th"})
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_ENCODINGS = re.compile(
    r"utf-?8|utf-16(?:-?[lb]e)?|(?:us-)?ascii|latin-?1|iso-?8859-(?:[1-9]|1[013-6])|(?:windows-|cp)125[0-8]|"
    r"koi8-[ru]|macintosh|shift-jis|euc-(?:jp|kr)|gb2312|gbk|gb18030|big5"
)
"""What a page may be written in. Python knows codecs besides that are slow, or no encodings of text at all."""
_META = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([A-Za-z0-9_\-]{1,40})", re.IGNORECASE)


def text(data: bytes, encoding: str | None = None) -> str:
    """The text of an HTML page. `encoding` is the one the server declared, which wins over the page's own."""
    reader = _Reader()
    reader.feed(decode(data, encoding))
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).replace("\0", "").split("\n"))
    return "\n".join(line for line in lines if line)[:MAX_CHARACTERS]


def decode(data: bytes, encoding: str | None = None) -> str:
    """Bytes of a page or text as a string: declared encoding, then the page's own, then UTF-8, then Windows-1252.

    Raises NotRetryable when an encoding is named that is none of ours, and the bytes are not UTF-8 either.
    """
    for mark, marked in _MARKS.items():
        if data.startswith(mark):
            return data.decode(marked, "replace")
    meta = _META.search(data, 0, 4096)
    named = [name.strip().lower().replace("_", "-") for name in (encoding, meta and meta[1].decode("ascii")) if name]
    for name in (*filter(_ENCODINGS.fullmatch, named), "utf-8"):
        try:
            return data.decode(name)
        except (LookupError, UnicodeError):
            continue
    if named and not any(map(_ENCODINGS.fullmatch, named)):
        raise NotRetryable(
            f"The page is written in {named[0][:40]!r}, which cannot be read; save it as UTF-8.", "unknown_encoding"
        )
    return data.decode("cp1252", "replace")


class _Reader(HTMLParser):
    """Collects text; knows how deep it is in what is not read."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._skipping: list[str] = []
        self._open: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipping.append(tag)
            self._open[tag] += 1
        elif tag in _BLOCKS:
            self.pieces.append("\n")
        elif tag in _CELLS:
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._open[tag]:
            # A page may forget an inner end tag; the outer one ends both.
            ended = ""
            while ended != tag:
                ended = self._skipping.pop()
                self._open[ended] -= 1
        elif tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.pieces.append(data)
