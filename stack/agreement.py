"""The one moment up to which all goes that is kept of a sender: every service knows it well before it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg.conninfo import make_conninfo

import services.analytics.erasure
from messaging import erasure
from messaging.database import Connection
from messaging.erasure import Told
from messaging.errors import MessagingError
from messaging.message import Key
from messaging.settings import read_secret
from stack import sentences
from stack.endpoints import Endpoints
from stack.terminal import out, say

Counts = Mapping[str, int]

AHEAD = timedelta(seconds=3)
"""How far ahead the moment is set; doubled when the services were not told early enough."""

MOMENTS = 4

# Two numbers: the locks of one number are those that writers share.
_ALONE = "(hashtext('workbot erase'), hashtext(encode(%s, 'hex')))"


class NotErased(MessagingError):
    """Something is left. What went is gone all the same, and erasing again goes on from there."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one service does about it, on a connection to its database. `mark` returns the moment it now remembers."""

    service: str
    count: Callable[[Connection, Key], Awaitable[Counts]]
    mark: Callable[[Connection, Key, datetime], Awaitable[datetime]]
    erase: Callable[[Connection, Key, datetime, Told], Awaitable[Counts]]


@contextmanager
def alone(endpoints: Endpoints, service: str, owner: Key) -> Iterator[None]:
    """Erase this sender while nobody else does, by a lock in this service's database, which ends with the process.
    Another command's end is waited for: marking later moments, it would have the services know more than this one.
    """
    name = [erasure.digest(owner)]
    with ExitStack() as held:
        with _told(service):
            conn = held.enter_context(closing(psycopg.connect(_conninfo(endpoints, service), autocommit=True)))
            row = conn.execute(f"select pg_try_advisory_lock{_ALONE}".encode(), name).fetchone()
            if row is None or not row[0]:
                say("Another command erases this sender; this one goes on when that has ended.", out)
                conn.execute(f"select pg_advisory_lock{_ALONE}".encode(), name)
        yield


async def agree(endpoints: Endpoints, every: Sequence[Share], owner: Key) -> datetime:
    """The moment up to which all goes, the same for every service. Returns when it has passed.

    Nothing goes before every service remembers it; then the counts do, which the process that counts takes out as
    soon as it is asked. Whatever ends this early is raised, and said in a line what that leaves.
    """
    known: dict[str, datetime] = {}
    asked = False
    try:
        async with connected(endpoints, every[0].service) as clock:
            for doubled in range(MOMENTS):
                wanted = await erasure.moment(clock, AHEAD * 2**doubled)
                until = await _mark(endpoints, every, owner, wanted, known)
                if not await _early(clock, until):
                    continue
                if until > wanted:
                    say(f"A run that was broken off had set a later moment; waits for it: {until}.", out)
                asked = True
                async with connected(endpoints, "analytics") as conn:
                    await services.analytics.erasure.ask(conn, owner)
                # Asked any later, the process that counts may have counted what is newer, and takes that out as well.
                if await _early(clock, until):
                    await _pass(clock, until)
                    return until
    except BaseException:
        if known:
            _tell_of_marks(asked)
        raise
    _tell_of_marks(asked)
    raise NotErased("The databases are too slow to tell every service in time.")


def _tell_of_marks(asked: bool) -> None:
    but = " (the counts may have gone)" if asked else ""
    say(f"Marked, not erased{but}: nobody is told any more of what came in before. Run this again.")


async def _mark(
    endpoints: Endpoints, every: Sequence[Share], owner: Key, until: datetime, known: dict[str, datetime]
) -> datetime:
    """The moment that all of them remember now: this one, or a later one that one of them had from a run before.
    `known` gets what each remembers."""
    while behind := [share for share in every if known.get(share.service) != until]:
        for share in behind:
            async with connected(endpoints, share.service) as conn:
                known[share.service] = await share.mark(conn, owner, until)
        until = max(known.values())
    return until


async def _early(clock: Connection, until: datetime) -> bool:
    return await erasure.moment(clock) + erasure.LEAD <= until


async def _pass(clock: Connection, until: datetime) -> None:
    now = await erasure.moment(clock)
    while now <= until:
        await asyncio.sleep((until - now).total_seconds() + 0.001)
        now = await erasure.moment(clock)


@asynccontextmanager
async def connected(endpoints: Endpoints, service: str) -> AsyncIterator[Connection]:
    """As the owner of the tables; each statement is a transaction of its own. Raises NotErased for whatever
    goes wrong within.
    """
    with _told(service):
        async with await psycopg.AsyncConnection.connect(_conninfo(endpoints, service), autocommit=True) as conn:
            yield conn


@contextmanager
def _told(service: str) -> Iterator[None]:
    try:
        yield
    except (psycopg.Error, OSError) as error:
        what = sentences.told(error)
        raise NotErased(f"{service}: {what} What is erased by now stays erased; run this again.") from error


def _conninfo(endpoints: Endpoints, service: str) -> str:
    return make_conninfo(
        endpoints.owner.url,
        dbname=service,
        password=read_secret(endpoints.owner.password_file, "the owner's database password"),
        connect_timeout=5,
        application_name="workbot-erase",
    )
