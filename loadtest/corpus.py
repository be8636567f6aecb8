"""Seeded documents: invoices as PDF, text and web page, and broken PDFs.

The same seed and index give the same bytes, in any process; no two indexes give the same.
"""

import hashlib
import html
import re
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Literal

from loadtest import breakage, pdf

Kind = Literal["pdf", "text", "page"]
REFERENCE = re.compile(r"\bINV-[0-9A-F]{12}\b")
"""An invoice number: unique per document, and in its readable text whatever its form."""

_SUPPLIERS = (
    "Northwind Paper & Print",
    "Halden Electrical",
    "Marisol Catering",
    "Brightwater Facilities",
    "Osei Logistics",
    "Lindqvist Tools",
    "Kestrel Cloud Hosting",
    "Petrov & Daughters Joinery",
)
_ITEMS = ("Toner cartridge", "Site visit", "Pallet transport", "Lunch platter", "Cable drum", "Consulting", "Licence")
_CURRENCIES = ("EUR", "USD", "GBP", "SEK")


@dataclass(frozen=True)
class Document:
    """One document of the corpus. For a page, `content` is the HTML its address serves."""

    index: int
    kind: Kind
    reference: str
    content: bytes
    broken: bool = False

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the bytes."""
        return hashlib.sha256(self.content).hexdigest()


def document(seed: int, index: int) -> Document:
    """A good document: three in five are PDFs, the rest texts and pages."""
    random = _random(seed, index)
    kind: Kind = random.choices(("pdf", "text", "page"), weights=(3, 1, 1))[0]
    return _make(seed, index, kind, random)


def broken(seed: int, index: int) -> Document:
    """A PDF that no reader can open; the kinds of `breakage` take turns."""
    random = _random(seed, index)
    whole = _write_pdf(seed, index, random)
    harm = breakage.KINDS[random.randrange(len(breakage.KINDS))]
    return Document(index, "pdf", reference(seed, index), harm(whole, random), broken=True)


def page(seed: int, index: int) -> bytes:
    """The HTML of an index, whatever kind `document` would choose for it."""
    return _html(_invoice(seed, index, _random(seed, index, "page")))


def reference(seed: int, index: int) -> str:
    """The invoice number of an index."""
    return f"INV-{hashlib.sha256(f'{seed}/{index}/number'.encode()).hexdigest()[:12].upper()}"


def _make(seed: int, index: int, kind: Kind, random: Random) -> Document:
    if kind == "pdf":
        content = _write_pdf(seed, index, random).data
    elif kind == "text":
        content = "\n".join(_invoice(seed, index, random)).encode()
    else:
        content = page(seed, index)
    return Document(index, kind, reference(seed, index), content)


def _random(seed: int, index: int, purpose: str = "document") -> Random:
    return Random(f"{seed}/{index}/{purpose}")  # noqa: S311 - reproducible on purpose, guards nothing


def _invoice(seed: int, index: int, random: Random) -> list[str]:
    """Lines of one invoice. A smudged value is marked with "(?)", as a clerk would; a reader should doubt it."""
    currency = random.choice(_CURRENCIES)
    rows = [
        (random.choice(_ITEMS), random.randint(1, 12), random.randint(500, 90_000))
        for _ in range(random.randint(2, 14))
    ]
    date = f"{random.randint(2024, 2026)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
    total = sum(count * cents for _, count, cents in rows)
    smudged = random.choice(("", "", "total", "date", "supplier"))

    def mark(field: str) -> str:
        return " (?)" if field == smudged else ""

    lines = [
        "INVOICE",
        f"Supplier: {random.choice(_SUPPLIERS)}{mark('supplier')}",
        f"Invoice number: {reference(seed, index)}",
        f"Invoice date: {date}{mark('date')}",
        "",
    ]
    lines += [f"{count} x {item} at {cents / 100:.2f}" for item, count, cents in rows]
    lines += ["", f"Total: {total / 100:.2f} {currency}{mark('total')}", f"Currency: {currency}", "Due in 30 days."]
    return lines


def _write_pdf(seed: int, index: int, random: Random) -> pdf.Written:
    """One to four pages; every third file carries a scan of 20 to 120 KB."""
    pages = [_invoice(seed, index, random)]
    for number in range(random.randint(0, 3)):
        terms = (f"Terms, {number + 2}.{line}: {random.choice(_ITEMS)} as ordered." for line in range(40))
        pages.append([f"Annex to {reference(seed, index)}", *terms])
    scan = random.randbytes(random.randint(20_000, 120_000)) if random.random() < 1 / 3 else b""
    identity = hashlib.sha256(f"{seed}/{index}/id".encode()).digest()[:16]
    return pdf.write(pages, identity=identity, scan=scan, compress=random.random() < 0.5)


def _html(lines: list[str]) -> bytes:
    title, *rest = (html.escape(line) for line in lines)
    paragraphs = "\n".join(f"<p>{line}</p>" for line in rest if line)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body><main>\n<h1>{title}</h1>\n{paragraphs}\n</main></body>\n</html>\n"
    ).encode()
