"""The corpus is what it says: good documents that real libraries read, broken ones that none can."""

import io
from collections import Counter
from random import Random

import pypdf
import pypdfium2
import pytest

from loadtest import breakage, corpus, pdf
from loadtest.scenario import Scenario

SEED = 7


def read_with_pypdf(content: bytes) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(content)).pages)


def read_with_pdfium(content: bytes) -> str:
    file = pypdfium2.PdfDocument(content)
    try:
        return "\n".join(page.get_textpage().get_text_range() for page in file)
    finally:
        file.close()


def test_both_libraries_read_every_good_pdf() -> None:
    documents = [corpus.document(SEED, index) for index in range(60)]
    pdfs = [document for document in documents if document.kind == "pdf"]
    assert len(pdfs) > 20
    for document in pdfs:
        for text in (read_with_pypdf(document.content), read_with_pdfium(document.content)):
            assert f"Invoice number: {document.reference}" in text
            assert "Total:" in text


@pytest.mark.parametrize("harm", breakage.KINDS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("compress", [True, False])
def test_both_libraries_fail_on_every_kind_of_breakage(harm: breakage.Harm, compress: bool) -> None:
    for number in range(24):
        random = Random(number)
        scan = random.randbytes(4000) if number % 3 == 0 else b""
        pages = [[f"Invoice number: {corpus.reference(SEED, number)}"]] * (1 + number % 3)
        whole = pdf.write(pages, identity=number.to_bytes(16, "big"), scan=scan, compress=compress)
        assert len(pypdf.PdfReader(io.BytesIO(whole.data)).pages) == len(pages)
        broken = harm(whole, random)
        assert broken.startswith(b"%PDF-1.7\n")
        with pytest.raises(pypdf.errors.PyPdfError):
            read_with_pypdf(broken)
        with pytest.raises(pypdfium2.PdfiumError):
            read_with_pdfium(broken)


def test_the_noisy_senders_hundred_broken_pdfs_fail_in_both_libraries() -> None:
    broken = [document for _, document in Scenario(seed=SEED).plan() if document.broken]
    assert len(broken) == 100
    for document in broken:
        with pytest.raises(pypdf.errors.PyPdfError):
            read_with_pypdf(document.content)
        with pytest.raises(pypdfium2.PdfiumError):
            read_with_pdfium(document.content)


def test_every_document_of_a_run_has_bytes_and_a_reference_of_its_own() -> None:
    documents = [document for _, document in Scenario(seed=SEED).plan()]
    assert len({document.sha256 for document in documents}) == len(documents) == 500
    assert len({document.reference for document in documents}) == 500
    kinds = Counter(document.kind for document in documents if not document.broken)
    assert set(kinds) == {"pdf", "text", "page"}
    sizes = [len(document.content) for document in documents]
    assert min(sizes) < 1_000
    assert max(sizes) > 50_000


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    assert corpus.document(SEED, 3).content == corpus.document(SEED, 3).content
    assert corpus.broken(SEED, 3).content == corpus.broken(SEED, 3).content
    assert corpus.document(SEED, 3).sha256 != corpus.document(SEED + 1, 3).sha256


def test_readable_documents_say_their_reference_whatever_their_kind() -> None:
    for index in range(60):
        document = corpus.document(SEED, index)
        text = read_with_pdfium(document.content) if document.kind == "pdf" else document.content.decode()
        assert corpus.REFERENCE.findall(text)[0] == document.reference


def test_the_noisy_sender_comes_first_with_its_broken_pdfs_spread_evenly() -> None:
    plan = list(Scenario().plan())
    assert [sender for sender, _ in plan[:300]] == ["noisy"] * 300
    assert not any(document.broken for _, document in plan[300:])
    for start in range(0, 300, 30):
        assert sum(document.broken for _, document in plan[start : start + 30]) == 10


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"counts": (1, 2)}, "one count per sender"),
        ({"senders": ("a", "a"), "counts": (1, 1), "broken": 0}, "name of its own"),
        ({"senders": ("a:b",), "counts": (1,), "broken": 0}, "colon"),
        ({"broken": 301}, "broken must be"),
        ({"counts": (300, 0, 1, 1, 1)}, "at least one"),
        ({"per_sender": 11}, "slots per sender"),
        ({"mean": 0}, "mean latency"),
        ({"error_rate": 0.6, "timeout_rate": 0.4}, "below 1 together"),
    ],
)
def test_a_scenario_that_makes_no_sense_says_why(options: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Scenario(**options)  # type: ignore[arg-type]
