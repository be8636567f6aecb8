"""Work on threads that Ctrl-C can break off, a steady rate, and the time from a send to an arrival."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from messaging.errors import MessagingError, Outage

PATIENCE_SECONDS = 60.0
"""How long anything awaited may take before the measurement is given up."""

WARM_UP = 20
"""Sends at the start of a round that are not counted: connections and plans are made with them."""

Result = TypeVar("Result")
Stop = threading.Event


class BrokenOff(MessagingError):
    """The bench was told to stop in the middle of a measurement."""


async def apart(work: Callable[[Stop], Result]) -> Result:
    """Run blocking work on a thread. Cancelled, it sets the work's `stop` and waits for its end: then nothing of it
    touches what is tidied up next.
    """
    stop = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.gather(working, return_exceptions=True)
        raise


def check(stop: Stop) -> None:
    """Raise BrokenOff once the work is to end."""
    if stop.is_set():
        raise BrokenOff("The measurement was broken off.")


def wait_until(condition: Callable[[], bool], what: str, stop: Stop, pause: float = 0.002) -> None:
    """Look every `pause` seconds. Raises Outage with `what` when it takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            raise Outage(f"Not within {PATIENCE_SECONDS:.0f} s: {what}.", "bench")
        if stop.wait(pause):
            check(stop)


def steadily(count: int, per_second: float, stop: Stop) -> Iterator[int]:
    """0 .. count - 1, each on its beat. A beat that was missed comes at once, as it would from many clients."""
    began = time.monotonic()
    for number in range(count):
        wait = began + number / per_second - time.monotonic()
        if wait > 0:
            stop.wait(wait)
        check(stop)
        yield number


def send_steadily(
    send: Callable[[int, Callable[[], None]], None], count: int, per_second: float, stop: Stop
) -> list[float]:
    """Call `send(number, now)` at a steady rate; when each called `now`, by the monotonic clock. The first WARM_UP
    are sent beyond `count`.
    """
    sent: list[float] = []
    for number in steadily(count + WARM_UP, per_second, stop):
        send(number, lambda: sent.append(time.monotonic()))
    return sent


def milliseconds(sent: Sequence[float], arrived: Mapping[int, float], stop: Stop) -> list[float]:
    """From each send to its arrival, once all have arrived; the warm-up left out."""
    wait_until(lambda: len(arrived) >= len(sent), "what was sent has not all arrived", stop)
    return [(arrived[number] - at) * 1000 for number, at in enumerate(sent) if number >= WARM_UP]
