"""Looking names up: one without an answer delays those who ask for it, and nobody else."""

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from web import outbound
from web.outbound import THREADS_EACH, Resolver

ADDRESS = ["192.0.2.1"]


class Servers:
    """The world's name servers: those of names that begin with "silent" say nothing until `speak`."""

    def __init__(self) -> None:
        self.speaking = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host.startswith("silent"):
            self.speaking.wait()
        if host.endswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return ADDRESS

    def speak(self) -> None:
        self.speaking.set()


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.speak()


@pytest.fixture
async def faults() -> AsyncIterator[list[Any]]:
    """What nobody awaited, which would end a process of ours."""
    found: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    loop.set_exception_handler(None)


async def test_names_without_an_answer_delay_nobody_else(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as may be under way for all calls but one; whoever asks for another name is answered meanwhile."""
    monkeypatch.setattr(outbound, "LOOKUP_SECONDS", 30.0)
    resolve, calls = Resolver(4, servers), 4
    silent = [asyncio.create_task(resolve(f"silent{n}", 443)) for n in range(calls * THREADS_EACH - 1)]
    try:
        await until(lambda: len(servers.asked) == len(silent))
        assert await resolve("quick", 443) == ADDRESS
        assert not any(task.done() for task in silent)
    finally:
        servers.speak()
    assert await asyncio.gather(*silent) == [ADDRESS] * len(silent)


async def test_a_name_without_an_answer_is_given_up(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "LOOKUP_SECONDS", 0.2)
    with pytest.raises(OSError, match=r"its name was not looked up within 0\.2 seconds") as slow:
        await Resolver(1, servers)("silent", 443)
    assert outbound.cause(slow.value) == str(slow.value)


async def test_what_is_left_behind_stays_within_the_width(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask: no more threads than that, and they are free again when the servers speak."""
    monkeypatch.setattr(outbound, "LOOKUP_SECONDS", 0.2)
    resolve = Resolver(1, servers)
    asking = (resolve(f"silent{n}", 443) for n in range(3 * THREADS_EACH))
    given_up = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(error, OSError) for error in given_up)
    with pytest.raises(OSError, match="not looked up"):
        await resolve("quick", 443)
    assert len(servers.asked) == THREADS_EACH
    servers.speak()
    monkeypatch.setattr(outbound, "LOOKUP_SECONDS", 30.0)
    assert await resolve("quick", 443) == ADDRESS


async def test_those_who_ask_for_one_name_share_its_lookup(servers: Servers) -> None:
    """One who leaves does not take it from the others."""
    resolve = Resolver(1, servers)
    asking = [asyncio.create_task(resolve("silent", 443)) for _ in range(10 * THREADS_EACH)]
    await until(lambda: bool(servers.asked))
    asking[0].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking[0]
    servers.speak()
    assert await asyncio.gather(*asking[1:]) == [ADDRESS] * (len(asking) - 1)
    assert servers.asked == ["silent"]
    await resolve("silent", 443)
    assert len(servers.asked) == 2, "asked anew afterwards: nothing is kept"


async def test_an_unknown_name_says_so(servers: Servers) -> None:
    with pytest.raises(socket.gaierror) as unknown:
        await Resolver(1, servers)("unknown", 443)
    assert outbound.cause(unknown.value) == "its name is unknown."


async def test_an_answer_that_comes_too_late_is_no_fault(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, faults: list[Any]
) -> None:
    monkeypatch.setattr(outbound, "LOOKUP_SECONDS", 0.2)
    resolve = Resolver(1, servers)
    for name in ("silent", "silent.unknown"):
        with pytest.raises(OSError, match="not looked up"):
            await resolve(name, 443)
    servers.speak()
    monkeypatch.setattr(outbound, "LOOKUP_SECONDS", 30.0)
    for n in range(THREADS_EACH):
        await resolve(f"quick{n}", 443)
    gc.collect()
    await asyncio.sleep(0)
    assert faults == []


def test_a_process_that_ends_does_not_wait_for_a_lookup() -> None:
    script = """
import asyncio, time
from web import outbound
outbound.LOOKUP_SECONDS = 0.2
async def main():
    try:
        await outbound.Resolver(1, lambda host, port: time.sleep(600))("silent", 443)
    except OSError as error:
        print(error)
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "its name was not looked up within 0.2 seconds.\n"
    assert ended.stderr == ""


async def test_the_system_is_asked() -> None:
    assert await Resolver(1)("127.0.0.1", 443) == ["127.0.0.1"]


async def until(true: Any) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)
