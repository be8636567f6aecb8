"""Times the documents API from a process of its own: five idempotent POSTs a second on one kept-alive connection.

Runs apart from the driver, whose event loop is busy and whose delays are not the API's. It reads its orders (with the
tokens, which must not show in a process list) as one JSON line on stdin, posts each once unmeasured, says so in a
line of its own, measures until stdin closes, and prints one JSON line: the milliseconds of every request, and how
many did not answer as expected, the unmeasured ones among them.
"""

import asyncio
import gc
import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Self
from urllib.parse import urlsplit

from messaging.errors import Outage

PER_SECOND = 5
_EXPECTED = 202
_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Orders:
    """Where to post, and the (Idempotency-Key, text) pairs that are posted again and again, in turn."""

    api: str
    token: str = field(repr=False)
    posts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds from sending a request to its last byte, in order. `errors` requests did not end in a 202, of
    these and of the unmeasured ones before them."""

    milliseconds: tuple[float, ...]
    errors: int


class Probe:
    """The probe's process, as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, orders: Orders) -> Self:
        """Start measuring; returns once the probe, its connection and the way of a repeated POST are warm.

        Raises Outage when the probe fails before that.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "loadtest.probe",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C goes to the run, which ends the probe itself.
            start_new_session=True,
        )
        started = False
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(orders)).encode() + b"\n")
            # One that has ended already has nothing to say, either.
            with suppress(ConnectionError):
                await process.stdin.drain()
            assert process.stdout is not None
            if not await process.stdout.readline():
                raise Outage(f"The probe ended with exit code {await process.wait()} before it measured.", "probe")
            started = True
        finally:
            if not started:
                # Cancelled, for one: nobody else knows of it yet.
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return cls(process)

    async def stop(self) -> Measured:
        """End it and take the measurements. Raises Outage when the probe has failed."""
        # An input, if empty: without one, communicate leaves stdin open.
        output, _ = await self._process.communicate(b"")
        if self._process.returncode != 0 or not output:
            code = self._process.returncode
            raise Outage(f"The probe ended with exit code {code} and no measurements.", "probe")
        answer = json.loads(output)
        return Measured(tuple(answer["milliseconds"]), answer["errors"])


def measure(orders: Orders, stop: threading.Event, warm: Callable[[], None]) -> Measured:
    """Post at a steady pace until told to stop. After a slow answer, the beats it missed are not made up for.

    Every post goes out once before that, unmeasured, and then `warm` is called. What fails there counts, too.
    """
    address = urlsplit(orders.api)
    if address.scheme != "http" or address.hostname is None:
        raise ValueError(f"the probe speaks plain HTTP only, not {orders.api}")
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=_TIMEOUT_SECONDS)
    path = f"{address.path.rstrip('/')}/api/documents"
    taken: list[float] = []
    errors = 0
    for number in range(len(orders.posts)):
        if stop.is_set():
            break
        errors += not _post(connection, path, orders, number)[1]
    else:
        warm()
    began = time.perf_counter()
    beat = 0
    while not stop.wait(max(0.0, began + beat / PER_SECOND - time.perf_counter())):
        milliseconds, accepted = _post(connection, path, orders, beat)
        errors += not accepted
        taken.append(milliseconds)
        beat = max(beat + 1, int((time.perf_counter() - began) * PER_SECOND))
    connection.close()
    return Measured(tuple(taken), errors)


def _post(connection: http.client.HTTPConnection, path: str, orders: Orders, number: int) -> tuple[float, bool]:
    """The milliseconds it took, and whether it ended in a 202."""
    key, text = orders.posts[number % len(orders.posts)]
    body = json.dumps({"text": text}).encode()
    headers = {
        "Authorization": f"Bearer {orders.token}",
        "Content-Type": "application/json",
        "Idempotency-Key": key,
    }
    start = time.perf_counter()
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        accepted = response.status == _EXPECTED
    except (OSError, http.client.HTTPException):
        connection.close()
        accepted = False
    return (time.perf_counter() - start) * 1000, accepted


def main() -> None:
    """The process: orders in, measurements out."""
    given = json.loads(sys.stdin.readline())
    orders = Orders(given["api"], given["token"], _pairs(given["posts"]))
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    # A collection in the middle of a request would be measured as the API's time.
    gc.disable()
    measured = measure(orders, stop, lambda: print("warm", flush=True))
    sys.stdout.write(json.dumps(asdict(measured)) + "\n")


def _pairs(posts: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, text) for key, text in posts)


if __name__ == "__main__":
    main()
