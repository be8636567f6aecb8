"""The text of a PDF. Runs in a process of the extraction pool: PDFium is native code, fed with strangers' files."""

import re

import pypdfium2

from messaging.errors import NotRetryable

MAX_PAGES = 300
MAX_CHARACTERS = 2_000_000
"""What is read of a very long document; the fields of an invoice stand on its first pages."""

_END = b"%%EOF"
_END_WITHIN = 4096
"""The end marker stands at the end; some writers and mail gateways append a little after it."""
_OBJECT = re.compile(rb"\d\s+\d+\s+obj\b")


def text(data: bytes) -> str:
    """All pages' text, a form feed between two. Raises NotRetryable naming what is wrong with the file.

    PDFium rebuilds a lost table of contents, which turns an upload that broke off into a document with fewer
    pages; so a file without its end marker is refused although something could be read of it.
    """
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise _refusal(data, str(error)) from None
    try:
        count = len(document)
        if not _has_end(data):
            raise _truncated()
        if count == 0:
            raise NotRetryable("The PDF has no pages.", "malformed_pdf")
        pages: list[str] = []
        size = 0
        for index in range(min(count, MAX_PAGES)):
            pages.append(_page(document, index))
            size += len(pages[-1])
            if size > MAX_CHARACTERS:
                break
        return "\f".join(pages)[:MAX_CHARACTERS].replace("\r\n", "\n").replace("\0", "")
    finally:
        document.close()


def _page(document: pypdfium2.PdfDocument, index: int) -> str:
    try:
        page = document[index]
        try:
            text = page.get_textpage()
            try:
                return str(text.get_text_bounded(errors="replace"))
            finally:
                text.close()
        finally:
            page.close()
    except pypdfium2.PdfiumError:
        raise NotRetryable(
            f"Page {index + 1} of the PDF is damaged and cannot be read; send the file again.", "malformed_pdf"
        ) from None


def _refusal(data: bytes, fault: str) -> NotRetryable:
    # PDFium also speaks of a password when it merely finds no page; only an encrypted file names its encryption.
    if "password" in fault.lower() and b"/Encrypt" in data:
        return NotRetryable("The PDF is protected by a password; send it without one.", "password_protected")
    if "security" in fault.lower():
        return NotRetryable("The PDF is encrypted in an unknown way; send it unprotected.", "password_protected")
    if not _has_end(data):
        return _truncated() if _OBJECT.search(data) else _no_pdf()
    return NotRetryable("The PDF is damaged and cannot be opened; export it again and send it anew.", "malformed_pdf")


def _has_end(data: bytes) -> bool:
    return _END in data.rstrip(b"\0 \t\r\n")[-_END_WITHIN:]


def _no_pdf() -> NotRetryable:
    return NotRetryable(
        "The file is not a readable PDF: it only begins like one. Export it again and send it anew.",
        "malformed_pdf",
    )


def _truncated() -> NotRetryable:
    return NotRetryable(
        "The PDF breaks off before its end; its upload may have been cut. Send it again.", "truncated_pdf"
    )
