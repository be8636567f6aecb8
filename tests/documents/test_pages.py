"""Fetching pages: the public ones, within limits, and never a private one by whatever road."""

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from messaging.errors import NotRetryable, Retryable
from services.documents.pages import MAX_REDIRECTS, Pages
from tests.fixtures.listening import listening
from tests.fixtures.origin import Answer, Origin, Request, serving

PAGE = Answer(body=b"<p>hello</p>", headers={"Content-Type": "text/html; charset=utf-8"})


@asynccontextmanager
async def pages(
    *origins: Origin,
    names: dict[str, Sequence[str]] | None = None,
    allow: frozenset[str] = frozenset(),
    seconds: float = 5.0,
    asked: list[str] | None = None,
) -> AsyncIterator[Pages]:
    """A fetcher that may reach the origins, and whose resolver knows `names` and addresses as numbers."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        if asked is not None:
            asked.append(host)
        if names is not None and host in names:
            return names[host]
        try:
            return [str(answer[4][0]) for answer in socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)]
        except socket.gaierror:
            raise socket.gaierror(socket.EAI_NONAME, "unknown") from None

    allow |= {f"127.0.0.1:{origin.port}" for origin in origins}
    fetcher = Pages(allow=allow, max_bytes=10_000, timeout_seconds=seconds, resolve=resolve)
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


async def test_a_page_that_is_allowed() -> None:
    async with serving(lambda _: PAGE) as origin, pages(origin) as fetcher:
        page = await fetcher.fetch(f"{origin.url}/invoice?id=1")
    assert (page.content, page.content_type, page.encoding) == (b"<p>hello</p>", "text/html", "utf-8")
    assert origin.requests[0].path == "/invoice?id=1"
    assert origin.requests[0].headers["host"] == f"127.0.0.1:{origin.port}"


async def test_pages_that_hang_delay_no_other() -> None:
    over = asyncio.Event()

    async def hang(_: Request) -> Answer:
        await over.wait()
        return PAGE

    async with (
        serving(hang) as hanging,
        serving(lambda _: PAGE) as well,
        pages(hanging, well, seconds=60.0) as fetcher,
    ):
        waiting = [asyncio.create_task(fetcher.fetch(hanging.url)) for _ in range(40)]
        async with asyncio.timeout(30):
            while len(hanging.requests) < len(waiting):
                await asyncio.sleep(0.01)
            assert (await fetcher.fetch(well.url)).content == PAGE.body
        assert not any(task.done() for task in waiting)
        over.set()
        await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://2130706433:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
    ],
)
async def test_a_private_server_is_never_connected_to(url: str) -> None:
    async with serving(lambda _: PAGE) as origin, pages() as fetcher:
        with pytest.raises(NotRetryable) as refused:
            await fetcher.fetch(url.format(port=origin.port))
    assert refused.value.reason == "address_refused"
    assert origin.connections == 0


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%eth0"],
        ["fd00::1"],
        ["93.184.215.14", "127.0.0.1"],
        ["127.0.0.1", "93.184.215.14"],
    ],
)
async def test_a_public_name_that_leads_to_a_private_address_is_refused(answers: list[str]) -> None:
    async with serving(lambda _: PAGE) as origin, pages(names={"innocent.example": answers}) as fetcher:
        with pytest.raises(NotRetryable) as refused:
            await fetcher.fetch(f"http://innocent.example:{origin.port}/")
    assert refused.value.reason == "address_refused"
    assert origin.connections == 0


async def test_a_name_that_changes_its_answer_gains_nothing() -> None:
    """DNS rebinding: judged as public, then answered as loopback. There is no second question."""
    asked: list[str] = []
    async with serving(lambda _: PAGE) as origin:
        names = _Turns(["93.184.215.14"], ["127.0.0.1"])
        async with pages(names=names, asked=asked, seconds=0.5) as fetcher:
            with pytest.raises(Retryable):
                await fetcher.fetch(f"http://flips.example:{origin.port}/")
    assert asked == ["flips.example"]
    assert origin.connections == 0


async def test_the_connection_goes_to_the_address_that_was_judged() -> None:
    asked: list[str] = []
    async with serving(lambda _: PAGE) as origin:
        names = _Turns(["127.0.0.1"], ["203.0.113.1"])
        allow = frozenset({f"flips.example:{origin.port}"})
        async with pages(names=names, asked=asked, allow=allow) as fetcher:
            assert (await fetcher.fetch(f"http://flips.example:{origin.port}/")).content == PAGE.body
    assert asked == ["flips.example"]
    assert origin.requests[0].headers["host"] == f"flips.example:{origin.port}"


class _Turns(dict[str, Sequence[str]]):
    """A name server whose answer changes each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        super().__init__({"flips.example": answers[-1]})
        self._answers = iter(answers)

    def __getitem__(self, host: str) -> Sequence[str]:
        return next(self._answers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(status: int) -> None:
    def respond(request: Request) -> Answer:
        return PAGE if request.path == "/there" else Answer(status, headers={"Location": "/there"})

    async with serving(respond) as origin, pages(origin) as fetcher:
        page = await fetcher.fetch(f"{origin.url}/here")
    assert page.url == f"{origin.url}/there"


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{private}/",
        "http://localhost:{private}/",
        "//127.0.0.1:{private}/",
        "http://inside.example:{private}/",
        "http://[::1]:{private}/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://ann:secret@127.0.0.1:{port}/",
    ],
)
async def test_a_redirect_to_where_nobody_may_go_is_refused(target: str) -> None:
    async with serving(lambda _: PAGE) as private:

        def respond(_: Request) -> Answer:
            place = target.format(private=private.port, port=public.port)
            return Answer(302, headers={"Location": place})

        async with serving(respond) as public:
            async with pages(public, names={"inside.example": ["127.0.0.1"]}) as fetcher:
                with pytest.raises(NotRetryable) as refused:
                    await fetcher.fetch(public.url)
            assert len(public.requests) == 1
    assert refused.value.reason == "address_refused"
    assert private.connections == 0


async def test_redirects_end() -> None:
    loop = Answer(302, headers={"Location": "/again"})
    async with serving(lambda _: loop) as origin, pages(origin) as fetcher:
        with pytest.raises(NotRetryable, match="redirects"):
            await fetcher.fetch(origin.url)
    assert len(origin.requests) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 204])
async def test_a_missing_page_is_for_good(status: int) -> None:
    async with serving(lambda _: Answer(status)) as origin, pages(origin) as fetcher:
        with pytest.raises(NotRetryable, match=str(status)) as error:
            await fetcher.fetch(origin.url)
    assert error.value.reason == "page_missing"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
async def test_a_server_in_trouble_may_recover(status: int) -> None:
    async with serving(lambda _: Answer(status)) as origin, pages(origin) as fetcher:
        with pytest.raises(Retryable, match=str(status)):
            await fetcher.fetch(origin.url)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"a" * 10_001, headers={"Content-Type": "text/plain"}),
        Answer(
            body=gzip.compress(b"a" * 5_000_000), headers={"Content-Type": "text/plain", "Content-Encoding": "gzip"}
        ),
        Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + b"a" * 20_000),
    ],
    ids=["declared", "unpacked", "undeclared"],
)
async def test_a_page_above_the_limit_is_cut_off(answer: Answer) -> None:
    async with serving(lambda _: answer) as origin, pages(origin) as fetcher:
        with pytest.raises(NotRetryable) as error:
            await fetcher.fetch(origin.url)
    assert error.value.reason == "too_large"


@pytest.mark.parametrize("kind", ["image/png", "application/zip", "video/mp4", ""])
async def test_a_type_that_cannot_be_read_is_refused(kind: str) -> None:
    async with (
        serving(lambda _: Answer(body=b"x", headers={"Content-Type": kind})) as origin,
        pages(origin) as fetcher,
    ):
        with pytest.raises(NotRetryable) as error:
            await fetcher.fetch(origin.url)
    assert error.value.reason == "unsupported_type"


async def _drip(_: Request) -> Answer:
    await asyncio.sleep(30)
    return PAGE


@pytest.mark.parametrize(
    "respond",
    [
        _drip,
        lambda _: Answer(raw=b""),
        lambda _: Answer(raw=b"SSH-2.0-OpenSSH\r\n"),
        lambda _: Answer(raw=b"HTTP/1.1 200"),
    ],
    ids=["silence", "nothing", "another protocol", "half an answer"],
)
async def test_a_server_that_does_not_speak_may_do_so_later(respond: Callable[[Request], Answer]) -> None:
    async with serving(respond) as origin, pages(origin, seconds=0.3) as fetcher:
        with pytest.raises(Retryable):
            await fetcher.fetch(origin.url)


async def test_the_time_limit_is_for_the_whole_page() -> None:
    """A server that sends a byte now and then keeps no slot."""

    left = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"a")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
        left.set()

    began = asyncio.get_running_loop().time()
    async with listening(slowly) as port, pages(origin := Origin(port), seconds=0.5) as fetcher:
        with pytest.raises(Retryable, match=r"0\.5 seconds"):
            await fetcher.fetch(origin.url)
        assert asyncio.get_running_loop().time() - began < 2
        await asyncio.wait_for(left.wait(), 5)


async def test_an_unknown_name_may_become_known() -> None:
    async with pages() as fetcher:
        with pytest.raises(Retryable, match="name is unknown"):
            await fetcher.fetch("http://nowhere.example/")


async def test_a_closed_port_may_open(unused_tcp_port: int) -> None:
    async with pages(Origin(unused_tcp_port)) as fetcher:
        with pytest.raises(Retryable, match="could not be reached"):
            await fetcher.fetch(f"http://127.0.0.1:{unused_tcp_port}/")
