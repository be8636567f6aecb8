"""What a file is, told from its bytes, whatever pieces they come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.documents.content import HTML, PDF, TEXT, Refused, Sniffer


def sniff(content: bytes, declared: str | None = None, name: str | None = None, sizes: tuple[int, ...] = ()) -> str:
    sniffer = Sniffer(declared, name)
    at = 0
    for size in (*sizes, len(content)):
        if at < len(content) and size:
            sniffer.feed(content[at : at + size])
        at += size
    return sniffer.finish()


@pytest.mark.parametrize(
    ("content", "declared", "name", "kind"),
    [
        (b"%PDF-1.4 anything", None, None, PDF),
        (b"%PDF-1.4 anything", "application/pdf; x=y", "a", PDF),
        (b"\0\0" + b"x" * 100 + b"%PDF-1.4", "application/pdf", None, PDF),
        (b"junk\n%PDF-1.4", "application/octet-stream", "a.pdf", PDF),
        (b"A text about %PDF-1.4 files", None, "a.txt", TEXT),
        ("Größe".encode(), "text/plain; charset=utf-8", None, TEXT),
        ("\ufeffGröße".encode(), None, None, TEXT),
        (b"a,b\n1,2", "text/csv", "a.csv", TEXT),
        (b"<p>hello", "text/html", None, HTML),
        (b"<p>hello", None, "a.HTML", HTML),
        (b"\n<!DOCTYPE html><p>hello", None, None, HTML),
        (b"<HTML>", "text/plain", None, HTML),
    ],
)
def test_what_can_be_read(content: bytes, declared: str | None, name: str | None, kind: str) -> None:
    assert sniff(content, declared, name) == kind


@given(st.text(), st.lists(st.integers(0, 7), max_size=40))
def test_any_text_is_a_text_in_whatever_pieces(text: str, sizes: list[int]) -> None:
    content = ("Dear Sir, " + text.replace("\0", "")).encode()
    assert sniff(content, sizes=tuple(sizes)) == TEXT


@given(st.binary(max_size=3000), st.lists(st.integers(0, 900), max_size=8))
def test_the_verdict_does_not_depend_on_the_pieces(content: bytes, sizes: list[int]) -> None:
    def verdict(*pieces: int) -> str:
        try:
            return sniff(content, "application/octet-stream", "a.pdf", pieces)
        except Refused as refused:
            return f"{refused.kind}: {refused}"

    assert verdict(*sizes) == verdict()


def test_the_position_of_the_first_bad_byte_is_named() -> None:
    with pytest.raises(Refused, match="byte 2004"):
        sniff(b"a" * 2000 + "€".encode() + b"\xff" + b"a" * 10, "text/plain", sizes=(2001, 1))
