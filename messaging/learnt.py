"""Schema ids that were learnt from the registry, kept in the service's own database for when the registry is away."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from messaging.database import Pool
from messaging.registry import Schema, text_of

_KEEP = """
insert into schema_ids as known (subject, fingerprint, id)
select * from unnest(%s::text[], %s::bytea[], %s::integer[])
on conflict (subject, fingerprint) do update set id = excluded.id, learnt_at = clock_timestamp()
where known.id <> excluded.id
"""

_FIND = """
select known.subject, known.fingerprint, known.id
from unnest(%s::text[], %s::bytea[]) as asked (subject, fingerprint)
join schema_ids as known using (subject, fingerprint)
"""


class Name(NamedTuple):
    """What an id stands for: a subject, and the fingerprint of exactly one version of its schema."""

    subject: str
    fingerprint: bytes


def name(subject: str, schema: Schema) -> Name:
    """The name of a version. Every change of the schema, also one of a default or a doc, makes it another."""
    return Name(subject, hashlib.sha256(text_of(schema).encode()).digest())


class Learnt:
    """The ids kept in one database. Both raise psycopg's errors when that is away."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def keep(self, ids: Mapping[Name, int]) -> None:
        """Remember what the registry said. Any number of processes may do so at once."""
        # In one order everywhere, so that two that write the same rows never wait for each other.
        names = sorted(ids)
        rows = ([one.subject for one in names], [one.fingerprint for one in names], [ids[one] for one in names])
        async with self._pool.connection() as conn:
            await conn.execute(_KEEP, rows)

    async def find(self, names: Sequence[Name]) -> dict[Name, int]:
        """Those of the ids that are known here."""
        async with self._pool.connection() as conn:
            asked = ([one.subject for one in names], [one.fingerprint for one in names])
            cursor = await conn.execute(_FIND, asked)
            return {Name(subject, bytes(fingerprint)): id_ for subject, fingerprint, id_ in await cursor.fetchall()}
