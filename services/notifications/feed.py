"""Following a tenant's notifications live: each once, in order, none left out.

A follower is registered at the number its tail has come to; what is above is put into its queue, what is below and
above its cursor it reads by itself, and what comes twice is dropped by number. The tail of a tenant reads once for
all who follow. A queue is bounded: a follower that cannot keep up is dropped, and comes back with its cursor.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable

import psycopg
import structlog

from messaging import telemetry
from messaging.database import Pool
from services.notifications.records import Entry, Sight
from services.notifications.store import inbox
from services.notifications.store.inbox import Wanted

QUEUE = 256
"""Entries that wait for one follower at most."""

STREAMS = 20
"""Streams that one person may follow in one process."""

PAGE = 200
"""Entries read at once."""

log = structlog.get_logger(__name__)


class Dropped(Exception):
    """The follower fell behind, or what it missed cannot be read now."""


class TooMany(Exception):
    """This person follows as often as anybody may."""


class Closed(Exception):
    """The process stops."""


class Follower:
    """One who follows. Made by Feed.follow."""

    def __init__(self, pool: Pool, sight: Sight, wanted: Wanted, after: int, head: int) -> None:
        self.sight = sight
        self.after = after
        """The number of the last entry that was given out, or passed over as nobody's of ours."""
        self._pool = pool
        self._wanted = wanted
        self._head = head
        self._queue: deque[Entry] = deque()
        self._something = asyncio.Event()
        self._end: Exception | None = None

    def offer(self, entry: Entry) -> None:
        """An entry above the head it was registered at; called in order."""
        if self._end is not None or not self.sight.sees(entry.audience_kind, entry.audience):
            return
        if self._wanted.team is not None and (entry.audience_kind, entry.audience) != ("team", self._wanted.team):
            return
        if len(self._queue) >= QUEUE:
            telemetry.STREAMS_DROPPED.inc()
            self.end(Dropped())
            return
        self._queue.append(entry)
        self._something.set()

    def end(self, why: Exception) -> None:
        """Give out nothing more."""
        self._end = why
        self._queue.clear()
        self._something.set()

    async def past(self) -> AsyncIterator[Entry]:
        """What was missed: above the cursor, up to where it was registered. Read as fast as it is taken.

        Raises Dropped when it cannot be read.
        """
        while self.after < self._head and self._end is None:
            try:
                async with self._pool.connection() as conn:
                    entries = await inbox.missed(conn, self.sight, self._wanted, self.after, self._head, PAGE)
            except psycopg.Error as error:
                log.warning("feed.past_not_read", error=str(error))
                raise Dropped from error
            for entry in entries:
                yield entry
                self.after = entry.seq
            if len(entries) < PAGE:
                self.after = max(self.after, self._head)

    async def next(self, seconds: float) -> Entry | None:
        """The next one, or None when none came within so many seconds. Raises Dropped or Closed at the end."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if self._end is not None:
                        raise self._end
                    while self._queue:
                        entry = self._queue.popleft()
                        if entry.seq > self.after:
                            self.after = entry.seq
                            return entry
                    self._something.clear()
                    await self._something.wait()
        except TimeoutError:
            return None


class Feed:
    """All who follow in this process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tails: dict[str, _Tail] = {}
        self._closed = False

    async def follow(self, sight: Sight, after: int | None, team: str | None = None) -> Follower:
        """Follow from behind the entry numbered `after`; None, or one that is not there yet: from now on. With a
        `team` only what that team is told, which the caller must be allowed to see.

        Call `leave` at the end. Raises psycopg errors when the database is away, TooMany, and Closed when the process
        stops.
        """
        async with self._pool.connection() as conn:
            newest = await inbox.head(conn, sight.tenant)
        if self._closed:
            raise Closed
        start = newest if after is None else min(after, newest)
        tail = self._tails.get(sight.tenant)
        if tail is None:
            tail = self._tails[sight.tenant] = _Tail(self._pool, sight.tenant, newest)
        if sum(other.sight.reader == sight.reader for other in tail.followers) >= STREAMS:
            raise TooMany
        follower = Follower(self._pool, sight, Wanted(team=team), start, tail.head)
        tail.followers.add(follower)
        telemetry.STREAMS_OPEN.inc()
        # The tail may be behind what this follower has seen elsewhere.
        tail.wake()
        return follower

    def leave(self, follower: Follower) -> None:
        """Follow no more. Harmless when it was left before."""
        tail = self._tails.get(follower.sight.tenant)
        if tail is None or follower not in tail.followers:
            return
        tail.followers.discard(follower)
        telemetry.STREAMS_OPEN.dec()
        if not tail.followers:
            del self._tails[follower.sight.tenant]
            tail.stop()

    def wake(self, tenants: Iterable[str] | None) -> None:
        """These tenants, or all, may have been told something."""
        for tenant in list(self._tails) if tenants is None else tenants:
            if tenant in self._tails:
                self._tails[tenant].wake()

    @property
    def followers(self) -> int:
        """How many there are."""
        return sum(len(tail.followers) for tail in self._tails.values())

    def close(self) -> None:
        """End every stream; nobody follows from here on."""
        self._closed = True
        for tail in self._tails.values():
            for follower in tail.followers:
                follower.end(Closed())


class _Tail:
    """The end of one tenant's notifications, as far as its followers have been given it."""

    def __init__(self, pool: Pool, tenant: str, head: int) -> None:
        self.head = head
        self.followers: set[Follower] = set()
        self._pool = pool
        self._tenant = tenant
        self._woken = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="tail")
        self._task.add_done_callback(_raise)

    def stop(self) -> None:
        self._task.cancel()

    def wake(self) -> None:
        self._woken.set()

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                while await self._read_on():
                    pass
            except psycopg.Error as error:
                # The next sweep tries again, from the same number.
                log.warning("feed.not_read", error=str(error))

    async def _read_on(self) -> bool:
        """One page; whether there may be more."""
        async with self._pool.connection() as conn:
            newest = await inbox.head(conn, self._tenant)
            entries = await inbox.between(conn, self._tenant, self.head, newest, PAGE)
        # Nothing is awaited between here and the new head: a follower that is registered meanwhile misses nothing.
        for entry in entries:
            for follower in self.followers:
                follower.offer(entry)
        more = len(entries) == PAGE
        self.head = entries[-1].seq if more else max(self.head, newest)
        return more


def _raise(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
