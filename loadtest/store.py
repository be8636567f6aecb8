"""All the SQL of the load test: it reads what the documents service and its consumer wrote, and writes nothing."""

from collections.abc import Sequence

from psycopg import AsyncConnection
from psycopg.rows import TupleRow, class_row

from loadtest.records import Run, Stored

Connection = AsyncConnection[TupleRow]

_COUNTS = "select sender, status, count(*) from documents where tenant = %s group by sender, status"

_DOCUMENTS = "select id::text, sender, status, attempts, error from documents where tenant = %s"

_RUNS = """
select coalesce(subject, '') as document, sender, attempt,
       extract(epoch from ready_at)::float8 as ready_at,
       extract(epoch from started_at)::float8 as started_at,
       extract(epoch from finished_at)::float8 as finished_at,
       outcome, lent, error
from ledger_attempts
where tenant = %s and consumer = %s
order by started_at
"""

_OTHERS_UNREAD = """
select count(*) from documents where tenant <> all(%s) and status in ('queued', 'reading', 'retrying')
"""


async def counts(conn: Connection, tenant: str) -> dict[tuple[str, str], int]:
    """How many documents of a tenant are in which status, by (sender, status)."""
    cursor = await conn.execute(_COUNTS, (tenant,))
    return {(sender, status): count for sender, status, count in await cursor.fetchall()}


async def documents(conn: Connection, tenant: str) -> list[Stored]:
    """Every document of a tenant."""
    cursor = conn.cursor(row_factory=class_row(Stored))
    return await (await cursor.execute(_DOCUMENTS, (tenant,))).fetchall()


async def runs(conn: Connection, tenant: str, consumer: str) -> list[Run]:
    """Every run of a tenant's jobs at one consumer, in order of start."""
    cursor = conn.cursor(row_factory=class_row(Run))
    return await (await cursor.execute(_RUNS, (tenant, consumer))).fetchall()


async def others_unread(conn: Connection, tenants: Sequence[str]) -> int:
    """How many documents of all other tenants still wait to be read, or are being read."""
    row = await (await conn.execute(_OTHERS_UNREAD, (list(tenants),))).fetchone()
    assert row is not None
    return int(row[0])
