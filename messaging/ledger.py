"""The ledger: starts, outcomes and the fence, in the service's own database, so that an effect happens once.

A start is written before a handler runs and an outcome after it, both in batches; the handler's effect and `done`
commit together. The token of the newest start is the fence: a run that lost it writes nothing.

A start without an outcome means that its process died under it. Such a job is a suspect: whoever finds it takes a
strike down, and the scheduler runs it alone, so that its neighbours collect none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

from messaging.database import Connection

WORKER_SILENT_SECONDS = 6.0
"""A worker whose heartbeat is older than this is taken for dead: as long as Kafka's group waits for a member."""

WORKER_LOCKLESS_SECONDS = 2.5
"""One without its advisory lock is given this long: after a restart of Postgres the living take theirs again."""


class Found(Enum):
    """What `begin` found; only GRANTED may run."""

    GRANTED = "granted"
    SUSPECT = "suspect"
    NOT_DUE = "not_due"
    BUSY = "busy"
    DONE = "done"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Start:
    """A job that asks to run. `due` says that its retry time has been waited for; `alone` that it is a suspect."""

    message_id: str
    generation: int
    due: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to one Start. `wait_seconds` is set for NOT_DUE."""

    found: Found
    token: int = 0
    failures: int = 0
    strikes: int = 0
    wait_seconds: float = 0.0


# `known` reads the rows as they were before this statement: that is how a leftover start is told from our own.
# A start need not survive a crash of Postgres, so its commit does not wait for the disk: with the row, the fence is
# gone too, and the run's end finds no row to write to.
_BEGIN = """
with soon as materialized (
    select set_config('synchronous_commit', 'off', true)
), input as (
    select * from unnest(%(ids)s::text[], %(generations)s::int[], %(tokens)s::bigint[], %(due)s::bool[],
                         %(alone)s::bool[]) as i(message_id, generation, token, due, alone)
    order by message_id, generation
), granted as (
    insert into ledger as l (consumer, message_id, generation, state, token, worker)
    select %(consumer)s, message_id, generation, 'started', token, %(worker)s from input
    on conflict (consumer, message_id, generation) do update
        set state = 'started', token = excluded.token, worker = excluded.worker, next_at = null,
            started_at = clock_timestamp(), updated_at = clock_timestamp()
        where l.state = 'released'
           or (l.state = 'started' and l.worker = excluded.worker)
           or (l.state = 'retrying' and (l.next_at <= clock_timestamp() or exists (
                select from input i
                where i.message_id = l.message_id and i.generation = l.generation and i.due)))
           or (l.state = 'suspect' and exists (
                select from input i
                where i.message_id = l.message_id and i.generation = l.generation and i.alone))
    returning l.message_id, l.generation, l.token, l.failures, l.strikes
)
select i.message_id, i.generation, g.token, coalesce(g.failures, known.failures), coalesce(g.strikes, known.strikes),
       known.state, known.token, extract(epoch from known.next_at - clock_timestamp())
from input i cross join soon
left join granted g using (message_id, generation)
left join ledger known
       on known.consumer = %(consumer)s and known.message_id = i.message_id and known.generation = i.generation
"""

_TAKE_STRIKES = """
with dead as (
    select l.message_id, l.generation, l.started_at, w.beat_at
    from unnest(%(ids)s::text[], %(generations)s::int[]) as i(message_id, generation)
    join ledger l on l.consumer = %(consumer)s and l.message_id = i.message_id and l.generation = i.generation
    left join ledger_workers w on w.id = l.worker
    where l.state = 'started' and l.worker <> %(worker)s
      and (w.id is null
           or w.beat_at < clock_timestamp() - make_interval(secs => %(silent)s)
           or (w.beat_at < clock_timestamp() - make_interval(secs => %(lockless)s)
               and not exists (select from pg_locks p
                               where p.locktype = 'advisory' and p.granted and p.objsubid = 2
                                 and p.classid = 'ledger_workers'::regclass::oid and p.objid = w.id::oid)))
    for update of l
)
update ledger l
set state = 'suspect', strikes = l.strikes + 1, token = %(token)s, updated_at = clock_timestamp()
from dead
where l.consumer = %(consumer)s and l.message_id = dead.message_id and l.generation = dead.generation
returning l.message_id, l.generation, l.failures, l.strikes
"""

_FINISH = """
update ledger set state = 'done', updated_at = clock_timestamp()
where consumer = %s and message_id = %s and generation = %s and token = %s and state = 'started'
"""

_FINISH_MANY = """
update ledger l set state = 'done', updated_at = clock_timestamp()
from unnest(%s::text[], %s::int[], %s::bigint[]) as i(message_id, generation, token)
where l.consumer = %s and l.message_id = i.message_id and l.generation = i.generation
  and l.token = i.token and l.state = 'started'
returning l.token
"""

_RETRY = """
update ledger set state = 'retrying', failures = failures + 1, updated_at = clock_timestamp(),
                  next_at = clock_timestamp() + make_interval(secs => %s)
where consumer = %s and message_id = %s and generation = %s and token = %s and state = 'started'
"""

_DEAD = """
update ledger set state = 'dead', failures = failures + %s, updated_at = clock_timestamp()
where consumer = %s and message_id = %s and generation = %s and token = %s
  and state in ('started', 'suspect', 'retrying')
"""

_HOLDS = """
select from ledger
where consumer = %s and message_id = %s and generation = %s and token = %s
  and state in ('started', 'suspect', 'retrying')
"""

_RELEASE_MANY = """
update ledger l set state = 'released', updated_at = clock_timestamp()
from unnest(%s::text[], %s::int[], %s::bigint[]) as i(message_id, generation, token)
where l.consumer = %s and l.message_id = i.message_id and l.generation = i.generation
  and l.token = i.token and l.state = 'started'
"""


class Ledger:
    """One consumer's pages of the ledger, for one worker. Takes the caller's connection and never commits."""

    def __init__(self, consumer: str, worker: int) -> None:
        self.consumer = consumer
        self.worker = worker
        self._numbers = count(1)

    def _next_token(self) -> int:
        # Unique in this database: the worker's id is drawn from its sequence, the rest counts this worker's starts.
        return self.worker << 32 | next(self._numbers)

    async def begin(self, conn: Connection, starts: Sequence[Start]) -> list[Grant]:
        """Write the starts down and say, for each in order, whether it may run."""
        tokens = [self._next_token() for _ in starts]
        cursor = await conn.execute(
            _BEGIN,
            {
                "consumer": self.consumer,
                "worker": self.worker,
                "ids": [start.message_id for start in starts],
                "generations": [start.generation for start in starts],
                "tokens": tokens,
                "due": [start.due for start in starts],
                "alone": [start.alone for start in starts],
            },
        )
        rows = {(row[0], row[1]): row[2:] for row in await cursor.fetchall()}
        grants: dict[tuple[str, int], Grant] = {}
        left_over: list[Start] = []
        for start in starts:
            token, failures, strikes, state, old_token, wait = rows[start.message_id, start.generation]
            name = (start.message_id, start.generation)
            if token is not None:
                grants[name] = Grant(Found.GRANTED, token, failures or 0, strikes or 0)
            elif state == "retrying":
                grants[name] = Grant(Found.NOT_DUE, 0, failures, strikes, max(0.0, float(wait or 0)))
            elif state in ("done", "dead"):
                grants[name] = Grant(Found(state), 0, failures, strikes)
            elif state == "suspect":
                grants[name] = Grant(Found.SUSPECT, old_token, failures, strikes)
            else:
                grants[name] = Grant(Found.BUSY, 0, failures or 0, strikes or 0)
                left_over.append(start)
        if left_over:
            grants.update(await self._take_strikes(conn, left_over))
        return [grants[start.message_id, start.generation] for start in starts]

    async def _take_strikes(self, conn: Connection, starts: Sequence[Start]) -> dict[tuple[str, int], Grant]:
        token = self._next_token()
        cursor = await conn.execute(
            _TAKE_STRIKES,
            {
                "consumer": self.consumer,
                "worker": self.worker,
                "ids": [start.message_id for start in starts],
                "generations": [start.generation for start in starts],
                "silent": WORKER_SILENT_SECONDS,
                "lockless": WORKER_LOCKLESS_SECONDS,
                "token": token,
            },
        )
        return {
            (message_id, generation): Grant(Found.SUSPECT, token, failures, strikes)
            for message_id, generation, failures, strikes in await cursor.fetchall()
        }

    async def finish(self, conn: Connection, message_id: str, generation: int, token: int) -> bool:
        """Mark a run done in the caller's transaction. False: fenced, roll back."""
        cursor = await conn.execute(_FINISH, (self.consumer, message_id, generation, token))
        return cursor.rowcount == 1

    async def finish_many(self, conn: Connection, runs: Sequence[tuple[str, int, int]]) -> set[int]:
        """Mark runs (message id, generation, token) done at once; returns the tokens that still held the fence."""
        cursor = await conn.execute(_FINISH_MANY, (*_columns(runs), self.consumer))
        return {row[0] for row in await cursor.fetchall()}

    async def retry(self, conn: Connection, message_id: str, generation: int, token: int, seconds: float) -> bool:
        """Count a failure; the job may not run again for `seconds`. False: fenced."""
        cursor = await conn.execute(_RETRY, (seconds, self.consumer, message_id, generation, token))
        return cursor.rowcount == 1

    async def holds(self, conn: Connection, message_id: str, generation: int, token: int) -> bool:
        """Whether this run still has the fence: asked before something is done outside the database."""
        cursor = await conn.execute(_HOLDS, (self.consumer, message_id, generation, token))
        return await cursor.fetchone() is not None

    async def dead(self, conn: Connection, message_id: str, generation: int, token: int, failures: int) -> bool:
        """Close the job as a dead letter, counting `failures` more. False: fenced."""
        cursor = await conn.execute(_DEAD, (failures, self.consumer, message_id, generation, token))
        return cursor.rowcount == 1

    async def release(self, conn: Connection, runs: Sequence[tuple[str, int, int]]) -> None:
        """Give starts back uncharged: the run was stopped by us, not by its own fault."""
        await conn.execute(_RELEASE_MANY, (*_columns(runs), self.consumer))


def _columns(runs: Sequence[tuple[str, int, int]]) -> tuple[list[str], list[int], list[int]]:
    return [run[0] for run in runs], [run[1] for run in runs], [run[2] for run in runs]


async def clean(conn: Connection, older_than_seconds: float, limit: int) -> int:
    """Drop settled rows, attempts and silent workers older than that many seconds, up to `limit` rows in all; returns
    how many. As many as the limit: there may be more."""
    left = limit
    for statement in (
        "delete from ledger where ctid = any(array(select ctid from ledger where state in ('done', 'dead')"
        " and updated_at < clock_timestamp() - make_interval(secs => %s) limit %s))",
        "delete from ledger_attempts where ctid = any(array(select ctid from ledger_attempts"
        " where finished_at < clock_timestamp() - make_interval(secs => %s) limit %s))",
        "delete from ledger_workers where ctid = any(array(select ctid from ledger_workers w"
        " where beat_at < clock_timestamp() - make_interval(secs => %s)"
        " and not exists (select from ledger l where l.worker = w.id and l.state = 'started') limit %s))",
    ):
        left -= (await conn.execute(statement, (older_than_seconds, left))).rowcount
    return limit - left


async def highest_generation(conn: Connection, consumer: str) -> int:
    """The highest generation of any message that the consumer has had, as far as it is remembered. Reads all rows."""
    row = await (await conn.execute("select max(generation) from ledger where consumer = %s", (consumer,))).fetchone()
    return row[0] or 0 if row is not None else 0
