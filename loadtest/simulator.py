"""A provider to test against: an OpenAI-compatible HTTP server that really reads what it is sent.

    python -m loadtest.simulator --port 8099 --mean 1.0 --error-rate 0.05

A malformed PDF gets 400, as from a real one. Everything else takes the time, and meets the failures, that the orders
and the seed say. Reading a file counts inside that time, on a thread of its own, so that a busy machine does not make
the provider slower than it was told to be. Listens on loopback only.

    POST /v1/chat/completions     the API
    GET  /pages/<seed>/<n>.html   the corpus's web pages
    GET  /records                 every request so far: document, call, attempt, start, end, status
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from loadtest import answer, corpus, faults, prompt
from loadtest.records import ProviderCall

_HANG_SECONDS = 600.0
_DEFAULT = faults.Terms()


class Simulator:
    """The provider's state: what it has read, how often it was asked, and what it answered."""

    def __init__(self, terms: faults.Terms) -> None:
        self.records: list[ProviderCall] = []
        self._terms = terms
        self._asked: Counter[tuple[str, int]] = Counter()
        # PDFium allows one thread at a time.
        self._reader = ThreadPoolExecutor(1, "reader")
        self._texts: dict[str, asyncio.Future[str]] = {}

    async def complete(self, request: Request) -> Response:
        """Answer one chat completion request, after the time it takes."""
        wall, begun = time.time(), time.monotonic()
        document, call, attempt = "", 0, 0
        try:
            body = json.loads(await request.body())
            asked = prompt.parse(body)
            document, call = asked.fingerprint, asked.call
            text = await self._text(asked)
            document = prompt.reference(text) or document
            self._asked[document, call] += 1
            attempt = self._asked[document, call]
            verdict = faults.verdict(self._terms, document, call, attempt)
            await self._until(request, begun, verdict)
            status = verdict.status
            reply = self._reply(verdict, answer.fields(text, document), body["model"])
        except (prompt.InvalidRequest, ValueError) as fault:
            code = fault.code if isinstance(fault, prompt.InvalidRequest) else "invalid_json"
            await _sleep_until(begun + faults.REFUSAL_SECONDS)
            status = 400
            reply = JSONResponse(answer.error(str(fault), "invalid_request_error", code), 400)
        self.records.append(ProviderCall(document, call, attempt, wall, wall + time.monotonic() - begun, status))
        return reply

    async def _text(self, asked: prompt.Prompt) -> str:
        if isinstance(asked.document, str):
            return asked.document
        reading = self._texts.get(asked.fingerprint)
        if reading is None:
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(self._reader, prompt.read_pdf, asked.document)
            self._texts[asked.fingerprint] = reading
        # Shielded: a client that goes away must not cancel the reading others wait for.
        return await asyncio.shield(reading)

    async def _until(self, request: Request, begun: float, verdict: faults.Verdict) -> None:
        if verdict.status:
            await _sleep_until(begun + verdict.seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANG_SECONDS):
                while (await request.receive())["type"] != "http.disconnect":
                    pass

    def _reply(self, verdict: faults.Verdict, found: list[dict[str, object]], model: str) -> Response:
        match verdict.status:
            case 200:
                return JSONResponse(answer.completion(found, model, len(self.records) + 1))
            case 429:
                body = answer.error("Rate limit reached; please wait.", "requests", "rate_limit_exceeded")
                return JSONResponse(body, 429, {"Retry-After": f"{self._terms.retry_after:g}"})
            case _:
                body = answer.error("The server had an error processing your request.", "server_error", "error")
                return JSONResponse(body, 500)


def application(simulator: Simulator) -> FastAPI:
    """The HTTP face."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_api_route("/v1/chat/completions", simulator.complete, methods=["POST"], response_model=None)

    @app.get("/records")
    async def records() -> list[dict[str, object]]:
        return [asdict(call) for call in simulator.records]

    @app.get("/pages/{seed}/{index}.html")
    async def page(seed: int, index: int) -> HTMLResponse:
        return HTMLResponse(corpus.page(seed, index).decode())

    return app


def serve(terms: faults.Terms, port: int, *, end_with_stdin: bool) -> None:
    """Listen until a signal (or, if asked, until stdin closes). The first line on stdout is {"port": …}."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(application(Simulator(terms)), log_level="warning", access_log=False, lifespan="off")
    )
    if end_with_stdin:

        def wait_for_end() -> None:
            sys.stdin.read()
            server.should_exit = server.force_exit = True

        threading.Thread(target=wait_for_end, daemon=True).start()
    sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    server.run(sockets=[listener])


def command(
    port: Annotated[int, typer.Option(help="Port on loopback; 0 lets the system choose.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of times and failures.")] = _DEFAULT.seed,
    mean: Annotated[float, typer.Option(help="Mean seconds of a document (both calls).")] = _DEFAULT.mean,
    error_rate: Annotated[float, typer.Option(help="Share of calls answered 500.")] = 0.0,
    timeout_rate: Annotated[float, typer.Option(help="Share of calls never answered.")] = 0.0,
    throttle_rate: Annotated[float, typer.Option(help="Share of calls answered 429.")] = 0.0,
    retry_after: Annotated[float, typer.Option(help="Seconds a 429 asks to wait.")] = _DEFAULT.retry_after,
    end_with_stdin: Annotated[bool, typer.Option(help="End when stdin closes.")] = False,
) -> None:
    """Serve an OpenAI-compatible provider for load tests."""
    terms = faults.Terms(seed, mean, error_rate, timeout_rate, throttle_rate, retry_after)
    serve(terms, port, end_with_stdin=end_with_stdin)


async def _sleep_until(moment: float) -> None:
    # The loop's timers count whole milliseconds, so one may fire a little early.
    while (left := moment - time.monotonic()) > 0:  # noqa: ASYNC110 - time tells of itself
        await asyncio.sleep(left)


if __name__ == "__main__":
    typer.run(command)
