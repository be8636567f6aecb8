"""The relay's leader killed under load, on a stack of its own: `python -m tests.chaos.relays --kills 20`.

Exits with 1 when an event was lost, came out of order, or the next one was not out within three seconds.
"""

import sys
import time
import uuid
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import make_conninfo

from messaging.database import conninfo
from stack import control
from tests.chaos import audit
from tests.chaos.audit import Stall
from tests.chaos.runner import Result, Say
from tests.chaos.stage import own_stack
from tests.fixtures.outbox import migrated
from tests.fixtures.stack import Database
from tests.messaging.leaderkills import Findings, strike

TAKEOVER_SECONDS = 3.0


def command(
    kills: Annotated[int, typer.Option(min=1, help="How often the leader is killed.")] = 20,
    seed: Annotated[int, typer.Option(help="The same seed gives the same moments.")] = 1,
    stack: Annotated[Path | None, typer.Option(help="Data folder of a running stack to use instead.")] = None,
) -> None:
    """Kill -9 of the relay's leader, again and again, while four writers write."""
    result = run(kills, seed, stack, say=_say)
    for line in result.broken():
        _say(line)
    sys.exit(bool(result.broken()))


def run(kills: int, seed: int, stack: Path | None = None, *, say: Say) -> Result:
    """Kill the leader so many times, on a stack of its own unless one is given. Blocks, and takes a minute."""
    begun = time.monotonic()
    if stack is not None:
        found = _strike(stack, kills, seed, say)
    else:
        say("Starting a stack of its own, for the relay.")
        with own_stack(services=False) as data_dir:
            found = _strike(data_dir, kills, seed, say)
    slowest = max(found.recoveries)
    say(f"{found.written} events, {found.repeats} repeats, {kills} kills, slowest takeover {slowest:.2f} s.")
    return Result("relay-leader", seed, [], findings=[judge(found)], seconds=time.monotonic() - begun)


def judge(found: Findings) -> audit.Findings:
    """In the words of the other runs."""
    slowest = Stall(max(found.recoveries, default=0.0))
    late = [seconds for seconds in found.recoveries if seconds >= TAKEOVER_SECONDS]
    return audit.Findings(
        load="events",
        jobs=found.written,
        ended=found.written - len(found.lost),
        lost=found.lost,
        twice=[f"{subject}: nobody wrote it" for subject in found.invented],
        out_of_order=found.out_of_order,
        late=[f"the next event was out after {seconds:.2f} s" for seconds in late],
        stalls={"takeover": slowest},
        in_all={"takeover": slowest},
        figures={"kills": len(found.recoveries), "repeats": found.repeats},
    )


def _strike(data_dir: Path, kills: int, seed: int, say: Say) -> Findings:
    """In a database and on a topic of its own."""
    endpoints = control.endpoints(data_dir)
    admin = conninfo(endpoints.admin.url, endpoints.admin.password_file, "chaos")
    name = f"relays_{uuid.uuid4().hex[:12]}"
    kafka = AdminClient({"bootstrap.servers": endpoints.kafka})
    kafka.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        with migrated(Database(name, make_conninfo(admin, dbname=name))) as service:
            return strike(service, endpoints.kafka, name, kills=kills, seed=seed, say=say)
    finally:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        kafka.delete_topics([name])[name].result(30)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(command)
