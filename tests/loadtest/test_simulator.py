"""The simulated provider over real HTTP, as its own process."""

import asyncio
import base64
import ssl
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from loadtest import corpus, faults, pdf
from loadtest.provider import ProviderProcess

SEED = 5
ROUNDING = 1e-6
"""Of a time of day, as far as a float has it, in seconds."""
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loading the system's certificates for every client would take longer than the requests."""
EXTRACTED = 'Extracted fields:\n{"fields": []}'


def request(document: corpus.Document, *, check: bool = False) -> dict[str, Any]:
    """A request as an OpenAI client sends it: the document, and for a check the extracted fields beside it."""
    if document.kind == "pdf":
        data = "data:application/pdf;base64," + base64.b64encode(document.content).decode()
        shown: dict[str, Any] = {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
    else:
        shown = {"type": "text", "text": document.content.decode()}
    parts = [shown, {"type": "text", "text": EXTRACTED}] if check else [shown]
    return {
        "model": "any",
        "messages": [{"role": "system", "content": "Read."}, {"role": "user", "content": parts}],
    }


async def ask(provider: ProviderProcess, body: object, timeout: float = 20.0) -> httpx.Response:
    async with httpx.AsyncClient(timeout=timeout, trust_env=False, verify=PLAIN) as client:
        return await client.post(f"{provider.model_url}/chat/completions", json=body)


@pytest.fixture
async def provider() -> AsyncIterator[ProviderProcess]:
    async with ProviderProcess(faults.Terms(SEED, mean=0.2)) as running:
        yield running


def documents(kind: str, count: int) -> list[corpus.Document]:
    every = (corpus.document(SEED, index) for index in range(1000))
    return [document for document in every if document.kind == kind][:count]


async def test_answers_with_the_fields_of_the_document(provider: ProviderProcess) -> None:
    for document in documents("pdf", 2) + documents("text", 2):
        answer = (await ask(provider, request(document))).raise_for_status().json()
        content = answer["choices"][0]["message"]["content"]
        fields = {field["name"]: field for field in httpx.Response(200, text=content).json()["fields"]}
        assert fields["number"]["value"] == document.reference
        assert fields["number"]["confidence"] >= 0.9
        assert set(fields) == {"supplier", "number", "date", "currency", "total"}
        assert all(field["value"] for field in fields.values())


async def test_doubtful_values_fall_under_the_bar(provider: ProviderProcess) -> None:
    lowest = []
    for document in documents("text", 8):
        content = (await ask(provider, request(document))).json()["choices"][0]["message"]["content"]
        low = min(field["confidence"] for field in httpx.Response(200, text=content).json()["fields"])
        assert (low < 0.8) == ("(?)" in document.content.decode())
        lowest.append(low)
    assert min(lowest) < 0.8 < max(lowest)


async def test_each_document_takes_its_seeded_time_split_over_two_calls(provider: ProviderProcess) -> None:
    chosen = documents("pdf", 8)

    async def read(document: corpus.Document) -> tuple[float, float]:
        taken = []
        for check in (False, True):
            start = time.perf_counter()
            (await ask(provider, request(document, check=check))).raise_for_status()
            taken.append(time.perf_counter() - start)
        return taken[0], taken[1]

    times = await asyncio.gather(*(read(document) for document in chosen))
    records = await provider.records()
    terms = faults.Terms(SEED, mean=0.2)
    for document, (first, second) in zip(chosen, times, strict=True):
        own = sorted((record for record in records if record.document == document.reference), key=lambda r: r.call)
        assert [(record.call, record.attempt, record.status) for record in own] == [(1, 1, 200), (2, 1, 200)]
        promised = faults.document_seconds(terms, document.reference)
        assert 0.1 <= promised <= 0.3
        for record, share, seen in zip(own, (0.7, 0.3), (first, second), strict=True):
            assert record.seconds >= promised * share - ROUNDING
            assert seen >= record.seconds - ROUNDING


def test_the_times_are_uniform_between_half_and_one_and_a_half_of_the_mean() -> None:
    terms = faults.Terms(SEED, mean=2.0)
    seconds = [faults.document_seconds(terms, corpus.reference(SEED, index)) for index in range(4000)]
    assert 1.0 <= min(seconds) < 1.01
    assert 2.99 < max(seconds) <= 3.0
    assert statistics.mean(seconds) == pytest.approx(2.0, abs=0.03)
    assert statistics.pstdev(seconds) == pytest.approx(2.0 / 12**0.5, abs=0.02)
    for call, share in ((1, 0.7), (2, 0.3)):
        verdict = faults.verdict(terms, "x", call, 1)
        assert verdict.seconds == pytest.approx(share * faults.document_seconds(terms, "x"))


async def test_a_malformed_pdf_is_refused_shortly_and_for_good(provider: ProviderProcess) -> None:
    for index in range(10):
        document = corpus.broken(SEED, index)
        answer = await ask(provider, request(document))
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_file"
        assert answer.json()["error"]["type"] == "invalid_request_error"
    records = await provider.records()
    assert {record.document for record in records} == {corpus.broken(SEED, index).sha256 for index in range(10)}
    assert all(record.status == 400 and record.seconds >= faults.REFUSAL_SECONDS - ROUNDING for record in records)
    assert statistics.median(record.seconds for record in records) < 0.3


async def test_a_request_that_is_not_well_formed_gets_400(provider: ProviderProcess) -> None:
    bodies: list[object] = [
        {},
        {"model": "m", "messages": []},
        {"model": "m", "messages": [{"role": "user"}]},
        {"model": "m", "messages": [{"role": "system", "content": "no document"}]},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "x"}}]}]},
        [],
    ]
    for body in bodies:
        answer = await ask(provider, body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["message"]


async def test_serves_the_pages_of_the_corpus(provider: ProviderProcess) -> None:
    document = documents("page", 1)[0]
    async with httpx.AsyncClient(trust_env=False) as client:
        page = await client.get(f"{provider.pages_url}/{SEED}/{document.index}.html")
    assert page.headers["content-type"].startswith("text/html")
    assert page.content == document.content


async def test_fails_as_often_as_ordered_and_the_same_way_again() -> None:
    terms = faults.Terms(SEED, mean=0.01, error_rate=0.3, throttle_rate=0.3, retry_after=2)
    chosen = documents("text", 40)
    statuses = []
    for _ in range(2):
        async with ProviderProcess(terms) as provider:
            answers = await asyncio.gather(*(ask(provider, request(document)) for document in chosen))
            records = {record.document: record.status for record in await provider.records()}
        statuses.append([answer.status_code for answer in answers])
        assert [records[document.reference] for document in chosen] == statuses[-1]
        for answer in answers:
            assert answer.headers.get("Retry-After") == ("2" if answer.status_code == 429 else None)
            assert ("error" in answer.json()) == (answer.status_code != 200)
    assert statuses[0] == statuses[1]
    counts = Counter(statuses[0])
    assert set(counts) == {200, 429, 500}
    assert all(4 <= count <= 28 for count in counts.values())


async def test_a_later_attempt_draws_its_failure_anew() -> None:
    terms = faults.Terms(SEED, mean=0.01, error_rate=0.5)
    document = next(d for d in documents("text", 60) if faults.verdict(terms, d.reference, 1, 1).status == 500)
    expected = [faults.verdict(terms, document.reference, 1, attempt).status for attempt in range(1, 6)]
    assert set(expected) == {200, 500}
    async with ProviderProcess(terms) as provider:
        assert [(await ask(provider, request(document))).status_code for _ in range(5)] == expected
        assert [record.attempt for record in await provider.records()] == [1, 2, 3, 4, 5]


async def test_an_ordered_time_out_never_answers_and_is_recorded_when_the_client_gives_up() -> None:
    async with ProviderProcess(faults.Terms(SEED, timeout_rate=0.999)) as provider:
        with pytest.raises(httpx.ReadTimeout):
            await ask(provider, request(documents("text", 1)[0]), timeout=0.4)
        async with asyncio.timeout(5):
            while not (records := await provider.records()):
                await asyncio.sleep(0.02)
    assert records[0].status == 0
    assert 0.3 < records[0].seconds < 3


async def test_reading_one_file_does_not_hold_up_another_request(provider: ProviderProcess) -> None:
    """Ten files of six hundred pages are being read while a text is answered on time."""
    lines = [[f"line {number}" for number in range(40)]]
    heavy = [corpus.Document(n, "pdf", "", pdf.write(lines * 600, identity=bytes([n]) * 16).data) for n in range(10)]
    text = documents("text", 1)[0]
    async with asyncio.TaskGroup() as group:
        for document in heavy:
            group.create_task(ask(provider, request(document)))
        await asyncio.sleep(0.1)
        await ask(provider, request(text))
    records = await provider.records()
    (light,) = [record for record in records if record.document == text.reference]
    last = max(record.finished_at for record in records)
    assert light.finished_at < last - 0.2
    assert light.seconds < (last - light.started_at) / 2
