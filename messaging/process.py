"""The life of a process: start in order, run until a signal, drain, stop in reverse. Exit codes mean something."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import structlog
import uvicorn
import uvloop

from messaging import telemetry
from messaging.errors import Misconfigured
from messaging.httphead import LimitedHead
from messaging.settings import ProcessSettings, load

log = structlog.get_logger(__name__)

EX_SOFTWARE = 70
EX_CONFIG = 78
GC_THRESHOLDS = (5_000, 20, 20)
"""New objects, young collections and middle ones before the next collection (CPython: 700, 10, 10)."""

MAX_CONNECTIONS = 1000
"""What one HTTP face serves at a time; whoever comes then is answered 503."""
UNTAKEN_MS = 60_000
"""How long bytes on their way to a client may stay unacknowledged, in milliseconds, before its connection ends."""

KEEP_ALIVE_SECONDS = 30
"""Longer than clients keep an idle connection (httpx: 5 s), so that a request does not meet the close."""

S = TypeVar("S", bound=ProcessSettings)
Start = Callable[[AsyncExitStack], Awaitable[None]]


def run(name: str, settings: ProcessSettings, start: Start) -> None:
    """Run a process until SIGTERM or SIGINT and end it with its exit code.

    `start` enters the process's parts on the given stack, in order; they are left in reverse. A second signal ends
    at once. 0: drained; 78 (EX_CONFIG): Misconfigured, a person must act; 70 (EX_SOFTWARE): a fault of ours, the
    supervisor starts us again.
    """
    telemetry.configure_logging(settings, name)
    code = uvloop.run(_live(start))
    log.info("process.ended", code=code)
    sys.stderr.flush()
    sys.exit(code)


def run_one_of(
    service: str, kind: type[S], starts: Mapping[str, Callable[[AsyncExitStack, S], Awaitable[None]]]
) -> None:
    """Run the process of a service that the one command-line argument names, with that service's settings."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in starts:
        sys.exit(f"usage: python -m services.{service}.main {'|'.join(starts)}")
    try:
        settings = load(kind)
    except Misconfigured as error:
        print(error, file=sys.stderr)
        sys.exit(EX_CONFIG)
    run(f"{service}-{name}", settings, lambda stack: starts[name](stack, settings))


async def _live(start: Start) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    code = 0

    def on_signal(number: int) -> None:
        if stop.is_set():
            log.warning("process.killed", signal=signal.Signals(number).name)
            os._exit(128 + number)
        log.info("process.stopping", signal=signal.Signals(number).name)
        stop.set()

    def on_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # An error nobody awaited is a fault of ours: state may be wrong, so start afresh rather than limp on.
        nonlocal code
        log.error("process.fault", what=context.get("message"), exc_info=context.get("exception"))
        code = EX_SOFTWARE
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.set_exception_handler(on_fault)
    try:
        async with AsyncExitStack() as stack:
            starting = asyncio.ensure_future(start(stack))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            elif starting.exception() is not None:
                stopping.cancel()
                starting.result()
            else:
                settle_memory()
                log.info("process.started")
            await stopping
    except Misconfigured as error:
        log.error("process.misconfigured", error=str(error))
        return EX_CONFIG
    except Exception:
        log.exception("process.failed")
        return EX_SOFTWARE
    return code


def settle_memory() -> None:
    """Tell the garbage collector that what is there now stays, and to look at the rest less often.

    Walking through what start-up made would stop the loop for tens of milliseconds at every full collection. A job
    makes some fifty objects that die with it: looked for after each 700, as CPython 3.11 does unless told otherwise,
    they took a tenth of the loop's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class _Server(uvicorn.Server):
    """Leaves signals to `run`, so that the order of shutting down is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve(app: Any, settings: ProcessSettings) -> AsyncIterator[int]:
    """Serve an ASGI app on the settings' host and port; yields the port. Leaving stops accepting, then finishes.

    Raises Misconfigured when the port cannot be had, RuntimeError when the server does not come up.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # What a client does not take is held for so long, and then its connection with it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_MS)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        place = f"{settings.host}:{settings.port}"
        raise Misconfigured(
            f"Cannot listen on {place}: {error.strerror}. Set WORKBOT_PORT to a free port."
        ) from error
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=LimitedHead,
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, int(settings.drain_seconds)),
            server_header=False,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn offers a flag, not an event
            await asyncio.sleep(0.01)
        if not server.started:
            listener.close()
            raise RuntimeError("The HTTP server did not start.") from task.exception()
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait({task})
        if server.started:
            task.result()
