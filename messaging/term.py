"""One term of office of the leading relay: read, send, confirm, and sleep when there is nothing to do.

Several slices may be on their way to Kafka at once; their order is the idempotent producer's to keep. The stored
position follows the delivery reports, oldest slice first.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass

import structlog

from messaging import telemetry
from messaging.backlog import Backlog
from messaging.bell import Bell
from messaging.cursor import SLICE_ROWS, Connection, Cursor, Order, Position, Row, Slice
from messaging.leader import BEAT_SECONDS, Leader, LostLead
from messaging.pace import POLL_MIN, Pace
from messaging.positions import Positions
from messaging.publisher import Batch, Publisher
from messaging.watchdog import Watchdog

POLL_MAX = 0.02
"""Seconds between looks at the table while it stays empty: doubling."""

POLLS_BEFORE_SLEEP = 4
FALLBACK_POLL = 0.25
"""Asleep, the table is looked at this often too, should a ring ever be lost."""

SAVE_SECONDS = 0.02
"""While slices follow each other the position is stored this often: what a crash repeats, at most."""

DRAIN_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a relay was started to do."""

    name: str
    bootstrap: str
    order: Order
    backlog_limit: int


@dataclass(slots=True)
class UnderWay:
    """A slice handed to Kafka, and the position that holds once it and all before it are confirmed."""

    batch: Batch
    end: Position


class Term:
    """Leads until told to stop, or until an error says that this process cannot lead. One thread, one connection."""

    def __init__(self, connection: Connection, leader: Leader, assignment: Assignment, stop: threading.Event) -> None:
        self.moves = 0
        """How often the stored position has moved."""
        self._leader = leader
        self._name = assignment.name
        self._stop = stop
        self._next_beat = 0.0
        self._saved_at = 0.0
        self._read_again_at = 0.0
        self._pace = Pace(time.monotonic())
        self._give_up_at = float("inf")
        self._empty_polls = 0
        self._under_way: deque[UnderWay] = deque()
        self._watchdog = Watchdog(connection, assignment.name)
        self._backlog = Backlog(connection, assignment.name, assignment.backlog_limit)
        self._bell = Bell(connection)
        self._positions = Positions(connection, assignment.name)
        self._cursor = Cursor(connection, assignment.order, self._positions.load(), self._check)
        self._publisher = Publisher(assignment.bootstrap, f"relay-{assignment.name}", self._check)

    def serve(self) -> None:
        """Returns when `stop` is set and what was on its way is confirmed, or has had its time."""
        try:
            while not self._stop.is_set():
                self._check()
                self._confirm()
                early = self._read_again_at - time.monotonic()
                if early <= 0 and self._rows_under_way() <= SLICE_ROWS and self._accept(self._cursor.next()):
                    continue
                pause = early if early > 0 else POLL_MIN
                if self._unanswered():
                    self._publisher.push(pause)
                elif self._under_way or early > 0:
                    self._stop.wait(pause)
                else:
                    self._rest()
            while self._under_way:
                self._check()
                if self._unanswered():
                    self._publisher.push(0.05)
                else:
                    time.sleep(POLL_MIN)
                self._confirm()
        finally:
            self._publisher.discard()

    def _accept(self, piece: Slice) -> bool:
        """Send a slice; False when there was nothing to send and nothing more to read."""
        if piece.rows:
            self._empty_polls = 0
            self._cursor.ask()
            self._under_way.append(UnderWay(self._publisher.send(piece.rows), piece.end))
            self._cursor.collect()
            if not piece.more:
                self._publisher.push(0.001)
        elif self._under_way:
            self._under_way[-1].end = piece.end
        now = time.monotonic()
        self._read_again_at = 0.0 if piece.more else now + self._pace.after(len(piece.rows), now)
        return bool(piece.rows) or piece.more

    def _confirm(self) -> None:
        """Move the position past what Kafka has confirmed."""
        done = 0
        for sent in self._under_way:
            if sent.batch.outstanding:
                break
            done += 1
        if not done or time.monotonic() < self._saved_at + SAVE_SECONDS:
            return
        rows = 0
        refused: list[tuple[Row, str]] = []
        for _ in range(done):
            last = self._under_way.popleft()
            refused += self._publisher.settle(last.batch)
            rows += len(last.batch.rows)
        self._leader.ensure()
        self._positions.move(last.end, refused)
        self._saved_at = time.monotonic()
        self.moves += 1
        telemetry.RELAY_PUBLISHED.labels(self._name).inc(rows - len(refused))
        for row, error in refused:
            telemetry.RELAY_REFUSED.labels(self._name).inc()
            log.error("relay.refused", relay=self._name, seq=row[0], topic=row[1], id=row[4], error=error)

    def _rest(self) -> None:
        """Nothing to read, nothing on its way: look a few times more, then sleep until a writer rings."""
        self._empty_polls += 1
        if self._empty_polls <= POLLS_BEFORE_SLEEP or not self._bell.fall_asleep():
            self._stop.wait(min(POLL_MAX, POLL_MIN * 2.0 ** (self._empty_polls - 1)))
            return
        while not self._stop.is_set() and not self._accept(self._cursor.next()):
            self._bell.wait(FALLBACK_POLL)
            self._check()
        self._bell.wake_up()
        self._empty_polls = 0

    def _check(self) -> None:
        """Between all steps and inside long ones: may we go on; the heartbeat and what goes with it, when due."""
        self._leader.ensure()
        now = time.monotonic()
        if self._stop.is_set():
            self._give_up_at = min(self._give_up_at, now + DRAIN_SECONDS)
            if now >= self._give_up_at:
                raise LostLead("Told to stop; what Kafka has not confirmed by now is sent again later.")
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        self._cursor.collect()
        waiting = self._rows_under_way() + self._cursor.known
        drawn = self._leader.beat(waiting)
        waiting += max(0, drawn - self._cursor.last_value) if self._cursor.last_value else 0
        first = self._under_way[0].batch if self._under_way else None
        self._backlog.update(waiting, drawn, first)
        self._watchdog.look()

    def _unanswered(self) -> bool:
        return any(sent.batch.outstanding for sent in self._under_way)

    def _rows_under_way(self) -> int:
        return sum(len(sent.batch.rows) for sent in self._under_way)
