"""The relay: carries committed outbox rows to Kafka, at least once, in the order of their commits per key.

One thread with one connection. Any number of processes may run a relay of one name; one leads, the others stand by
and follow within three seconds of its death. Lost connections, restarts of Postgres and a Kafka that is away are
ridden out with backoff. Use a direct connection: a transaction pooler would share the leader's lock.
"""

import os
import random
import socket
import threading
import time

import psycopg
import structlog
from confluent_kafka import KafkaException
from psycopg.conninfo import make_conninfo

from messaging import telemetry
from messaging.backlog import LIMIT
from messaging.cursor import Connection, Order
from messaging.errors import Misconfigured
from messaging.leader import Leader, LostLead
from messaging.term import Assignment, Term

STANDBY_SECONDS = 0.25
"""How often a standby tries for the lead."""

BACKOFF_MIN = 0.1
BACKOFF_MAX = 2.0

_HEALTHY_SECONDS = 15.0

# A plan that suits any difference: the two indexes, never a scan of a whole partition. A lost position after a crash
# of Postgres means repeats, so it need not wait for the disk.
_SESSION = (
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
    "SET plan_cache_mode = force_generic_plan",
    "SET jit = off",
    "SET work_mem = '32MB'",
    "SET synchronous_commit = off",
)

log = structlog.get_logger(__name__)


class Relay:
    """A relay's thread in this process. `name` is the same in every process of one outbox."""

    def __init__(
        self, conninfo: str, bootstrap: str, name: str, order: Order = "commit", *, backlog_limit: int = LIMIT
    ) -> None:
        """`order`: see `cursor`. `backlog_limit` is in rows; past it the outbox refuses writers."""
        self.failure: Misconfigured | None = None
        """Why the thread ended by itself, if it did: a person must act."""
        self.leading = False
        self._conninfo = make_conninfo(conninfo, application_name=f"relay-{name}", tcp_user_timeout=5000)
        self._assignment = Assignment(name, bootstrap, order, backlog_limit)
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._stop = threading.Event()
        self._seen_at = time.monotonic()
        self._progressed = False
        self._thread = threading.Thread(target=self._run, name=f"relay-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once, whether or not Postgres and Kafka are there."""
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> bool:
        """Confirm what is on its way and give up the lead; whether the thread ended within `timeout` seconds."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def healthy(self) -> bool:
        """Whether the thread does its work: leads, stands by, or waits for a server that is away."""
        recent = self.leading or time.monotonic() < self._seen_at + _HEALTHY_SECONDS
        return self._thread.is_alive() and self.failure is None and recent

    def _run(self) -> None:
        delay = BACKOFF_MIN
        while not self._stop.is_set():
            self._progressed = False
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as connection:
                    self._serve(connection)
            except Misconfigured as error:
                self.failure = error
                log.critical("relay.misconfigured", relay=self._assignment.name, error=str(error))
                return
            except Exception as error:
                # Whatever it was, the rows are still in the outbox: begin again from the stored position.
                self._record(error)
            self._seen_at = time.monotonic()
            delay = BACKOFF_MIN if self._progressed else min(BACKOFF_MAX, delay * 2)
            self._stop.wait(delay * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing

    def _serve(self, connection: Connection) -> None:
        """Stand by until the lead is ours, then lead."""
        for setting in _SESSION:
            connection.execute(setting)
        leader = Leader(connection, self._assignment.name, self._process)
        while not leader.claim():
            self._seen_at = time.monotonic()
            if leader.depose():
                telemetry.RELAY_TAKEOVERS.labels(self._assignment.name).inc()
                log.warning("relay.deposed_frozen_leader", relay=self._assignment.name)
            elif self._stop.wait(STANDBY_SECONDS):
                return
        self._lead(Term(connection, leader, self._assignment, self._stop))

    def _lead(self, term: Term) -> None:
        name = self._assignment.name
        log.info("relay.leads", relay=name, order=self._assignment.order)
        self.leading = True
        telemetry.RELAY_LEADER.labels(name).set(1)
        try:
            term.serve()
        finally:
            self._progressed = term.moves > 0
            self.leading = False
            telemetry.RELAY_LEADER.labels(name).set(0)
            log.info("relay.led", relay=name)

    def _record(self, error: Exception) -> None:
        name = self._assignment.name
        if isinstance(error, LostLead):
            log.warning("relay.lost_lead", relay=name, error=str(error))
            return
        resource = {psycopg.Error: "database", KafkaException: "kafka"}
        where = next((resource[kind] for kind in resource if isinstance(error, kind)), "relay")
        telemetry.RELAY_OUTAGES.labels(name, where).inc()
        log.warning("relay.interrupted", relay=name, resource=where, error=str(error), exc_info=where == "relay")
