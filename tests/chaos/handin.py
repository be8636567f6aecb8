"""Handing no-op jobs in: rows and outbox rows in one transaction, again until it is known to be committed."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import psycopg

from messaging import outbox
from messaging.database import is_outage
from messaging.message import Envelope
from messaging.migrate import migrate
from tests.chaos.gate import Gate
from tests.chaos.records import Planned

SENDERS = 40
FAIL_EVERY = 50
"""One job in so many fails at its first attempt."""

_BATCH = 200
_PAUSE_SECONDS = 0.2

_TABLES = """
create table jobs (number bigint primary key, job text, consumer text, key text, failures int, killer bool,
                   at timestamptz not null default clock_timestamp());
create table effects (place bigint generated always as identity, job text, pid int,
                      at timestamptz not null default clock_timestamp());
create table ends (job text, attempts int, error text);
"""

_INSERT = "insert into jobs (number, job, consumer, key, failures, killer) values (%s, %s, %s, %s, %s, %s)"


def make_database(admin: str, database: str, conninfo: str) -> None:
    """An empty database with the layer's own tables and the run's."""
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute(f"drop database if exists {database} with (force)".encode())
        conn.execute(f"create database {database}".encode())
    migrate(conninfo, [], "postgres")
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute(_TABLES)


class HandIn:
    """Writes so many jobs, as far as the gate is open. The same seed gives the same keys, kinds and failures."""

    def __init__(self, database: str, topics: Mapping[str, str], *, jobs: int, seed: int, killers: int) -> None:
        self.gate = Gate(jobs)
        self.longest = 0.0
        """Seconds that the slowest transaction took, repeats included."""
        self._database = database
        self._topics = topics
        self._random = Random(f"{seed}/jobs")
        self._killers = set(self._random.sample(range(jobs), killers))
        self._written = 0

    async def run(self) -> None:
        """Hand everything in."""
        while self._written < self.gate.jobs:
            await self.gate.passed(self._written)
            count = min(_BATCH, self.gate.allowed - self._written)
            batch = [self._job(number) for number in range(self._written, self._written + count)]
            begun = time.monotonic()
            await asyncio.to_thread(self._write, batch)
            self.longest = max(self.longest, time.monotonic() - begun)
            self._written += count

    def _job(self, number: int) -> tuple[Planned, Envelope]:
        consumer = self._random.choice(sorted(self._topics))
        # The lower numbers have most of the jobs, as a noisy sender would.
        key = f"acme:s{min(self._random.randrange(SENDERS), self._random.randrange(SENDERS))}"
        killer, failures = number in self._killers, int(self._random.randrange(FAIL_EVERY) == 0)
        does: dict[str, Any] = {"do": "fail", "times": 1} if failures else {"do": "effect"}
        envelope = Envelope(
            topic=self._topics[consumer],
            key=key,
            type="chaos.job",
            version=1,
            payload=json.dumps({"do": "exit"} if killer else does).encode(),
            source="chaos",
            subject=str(number),
        )
        return Planned(str(envelope.id), consumer, key, number, 0.0, killer, failures), envelope

    def _write(self, batch: Sequence[tuple[Planned, Envelope]]) -> None:
        while True:
            try:
                self._write_once(batch)
            except psycopg.Error as error:
                if not is_outage(error):
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _write_once(self, batch: Sequence[tuple[Planned, Envelope]]) -> None:
        with psycopg.connect(self._database) as conn:
            if conn.execute("select from jobs where number = %s", [batch[0][0].number]).fetchone() is not None:
                return
            with conn.cursor() as cursor:
                cursor.executemany(
                    _INSERT, [(j.number, j.job, j.consumer, j.key, j.failures, j.killer) for j, _ in batch]
                )
            conn.execute(outbox.INSERT, outbox.parameters([envelope for _, envelope in batch]))
