"""Text out of files: real PDFs, broken ones, and a pool that outlives what they do to it."""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from random import Random

import pypdf
import pytest

from loadtest import breakage, pdf
from messaging.errors import NotRetryable, Retryable
from services.documents import extraction as extraction_module
from services.documents.extraction import Extraction, Task
from tests.documents.processes import runs

LINES = ["INVOICE", "Supplier: Acme (Paris) & Söhne", "Total: 12.00 EUR"]
FILE = pdf.write([LINES, ["page two"]], identity=b"0" * 16)


@pytest.fixture
async def extraction() -> AsyncIterator[Extraction]:
    pool = Extraction(2, 20.0)
    await pool.start()
    yield pool
    await pool.close()


def protected(user: str, owner: str | None = None, algorithm: str = "AES-256") -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(FILE.data))
    writer.encrypt(user, owner, algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def written(pages: int) -> bytes:
    writer = pypdf.PdfWriter()
    for _ in range(pages):
        writer.add_blank_page(100, 100)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


async def test_the_text_of_a_pdf_page_by_page(extraction: Extraction) -> None:
    text = await extraction.text("pdf", FILE.data)
    assert text == "\n".join(LINES) + "\fpage two"


async def test_a_pdf_without_words_is_no_error(extraction: Extraction) -> None:
    assert (await extraction.text("pdf", written(2))).strip() == ""


async def test_what_a_mail_gateway_appends_does_no_harm(extraction: Extraction) -> None:
    assert "Acme" in await extraction.text("pdf", FILE.data + b"\r\n" * 3000)


async def test_a_pdf_that_only_its_owner_may_change_can_be_read(extraction: Extraction) -> None:
    assert "Acme" in await extraction.text("pdf", protected("", "owner"))


BROKEN = {
    "cut to a half": (FILE.data[: len(FILE.data) // 2], "truncated_pdf"),
    "cut by its last line": (FILE.data[:-8], "truncated_pdf"),
    "cut to its header": (FILE.data[:20], "malformed_pdf"),
    "a header and garbage": (b"%PDF-1.7\n" + Random(2).randbytes(4096), "malformed_pdf"),
    "a password": (protected("secret"), "password_protected"),
    "an old password": (protected("secret", algorithm="RC4-128"), "password_protected"),
    "no pages": (written(0), "malformed_pdf"),
    "nothing but both ends": (b"%PDF-1.7\nhello\n%%EOF\n", "malformed_pdf"),
} | {kind.__name__: (kind(FILE, Random(1)), None) for kind in breakage.KINDS}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_broken_pdf_says_what_is_wrong_with_it(extraction: Extraction, case: str) -> None:
    data, reason = BROKEN[case]
    with pytest.raises(NotRetryable) as error:
        await extraction.text("pdf", data)
    assert error.value.reason == reason or (reason is None and error.value.reason.endswith("_pdf"))
    assert str(error.value).startswith(("The PDF ", "The file is not a readable PDF"))
    assert str(error.value).endswith(".")


async def test_a_file_that_hangs_is_given_up_and_the_pool_goes_on() -> None:
    """A stopped process is what a file that sends the native code into an endless loop looks like from outside."""
    pool = Extraction(2, 3.0)
    await pool.start()
    stuck, _ = pool.pids()
    os.kill(stuck, signal.SIGSTOP)
    results = await asyncio.gather(*(pool.text("pdf", FILE.data) for _ in range(6)), return_exceptions=True)
    failures = [result for result in results if not isinstance(result, str)]
    assert len(failures) == 1
    assert isinstance(failures[0], NotRetryable)
    assert (failures[0].reason, str(failures[0])) == ("too_complex", "Reading the file took more than 3 seconds.")
    await _until_replaced(pool, stuck)
    assert not runs(stuck)
    assert len(set(await asyncio.gather(*(pool.text("pdf", FILE.data) for _ in range(4))))) == 1
    await pool.close()


async def test_a_process_that_dies_once_costs_no_file_an_attempt(extraction: Extraction) -> None:
    """The large file needs a while to be handed over, so the kill comes in the middle."""
    first, second = extraction.pids()
    os.kill(first, signal.SIGSTOP)
    os.kill(second, signal.SIGSTOP)
    running = [asyncio.create_task(extraction.text("pdf", FILE.data)) for _ in range(4)]
    await asyncio.sleep(0.1)
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGCONT)
    assert len(set(await asyncio.gather(*running))) == 1


async def test_a_file_that_kills_two_processes_is_given_up_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Extraction(1, 20.0)
    await pool.start()
    ask, killed = extraction_module._ask, []

    async def deadly(process: Process, task: Task, data: bytes, encoding: str | None) -> str | NotRetryable:
        killed.append(process.pid)
        process.kill()
        return await ask(process, task, data, encoding)

    monkeypatch.setattr(extraction_module, "_ask", deadly)
    with pytest.raises(NotRetryable, match="ends the program") as error:
        await pool.text("pdf", FILE.data)
    assert error.value.reason == "too_complex"
    assert len(set(killed)) == 2
    monkeypatch.undo()
    assert "Acme" in await pool.text("pdf", FILE.data)
    await pool.close()


async def test_a_fault_of_the_reader_is_the_files_and_the_process_lives(extraction: Extraction) -> None:
    pids = extraction.pids()
    with pytest.raises(NotRetryable) as error:
        await extraction.text("html", b"caf\xe9", "no-such-encoding")
    assert error.value.reason == "unknown_encoding"
    with pytest.raises(NotRetryable) as error:
        await extraction.text("html", b"<p>x", 7)  # type: ignore[arg-type]
    assert error.value.reason == "unreadable"
    assert extraction.pids() == pids


async def test_files_under_way_when_the_pool_closes_are_to_be_read_again() -> None:
    pool = Extraction(1, 20.0)
    await pool.start()
    os.kill(pool.pids()[0], signal.SIGSTOP)
    reading = asyncio.create_task(pool.text("pdf", FILE.data))
    await asyncio.sleep(0.05)
    await pool.close()
    with pytest.raises(Retryable):
        await reading


async def test_an_idle_process_that_dies_is_noticed_by_nobody(extraction: Extraction) -> None:
    for pid in extraction.pids():
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert len(await asyncio.gather(*(extraction.text("pdf", FILE.data) for _ in range(5)))) == 5


async def test_a_cancelled_reading_leaves_no_answer_to_the_next(extraction: Extraction) -> None:
    other = pdf.write([["another document"]], identity=b"1" * 16).data
    for _ in range(10):
        reading = asyncio.create_task(extraction.text("pdf", FILE.data))
        await asyncio.sleep(0)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        assert await extraction.text("pdf", other) == "another document"


async def test_the_processes_end_with_the_pool() -> None:
    pool = Extraction(2, 1.0)
    await pool.start()
    pids = pool.pids()
    await pool.close()
    assert not any(runs(pid) for pid in pids)


def test_the_processes_end_with_a_parent_that_is_killed() -> None:
    """Also one that is in the middle of a file, and so does not see that its stdin has closed."""
    program = """
import asyncio
from services.documents.extraction import Extraction

async def main():
    pool = Extraction(2, 60.0)
    await pool.start()
    print(*pool.pids(), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while any(runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_page_becomes_text(extraction: Extraction) -> None:
    page = "<title>Rechnung</title><style>p {}</style><p>Größe: <b>3</b></p><script>evil()</script><p>Ende".encode()
    assert await extraction.text("html", page) == "Rechnung\nGröße: 3\nEnde"


async def _until_replaced(pool: Extraction, pid: int) -> None:
    async with asyncio.timeout(10):
        while pid in pool.pids() or len(pool.pids()) < 2:
            await asyncio.sleep(0.02)
