"""What the relay reads next: the difference between two snapshots, never "ids above the last one".

A position is a whole `pg_snapshot`: every row visible in it is done. The next batch is what the reading statement
sees and the position does not, so a row committed late is read when it commits, whatever its number, and nothing
waits for it. Inside a batch rows are sorted by `seq`. A transaction that waited for a row lock commits after its
holder and draws its numbers later, so the events of one aggregate keep the order of its changes, across batches and
inside them.

`strict` cuts the reading snapshot at its xmin: while one writer is open, nothing of a younger transaction is read.

A large difference is walked in slices by `seq`, with both snapshots fixed and every statement bounded.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psycopg

Order = Literal["commit", "strict"]
Connection = psycopg.Connection[tuple[Any, ...]]
Answer = psycopg.Cursor[tuple[Any, ...]]

Row = tuple[int, str, str, bytes, str, str, str, str, str, str, str | None]
"""seq, topic, key, payload, id, source, type, time, subject, version, traceparent."""

SLICE_ROWS = 5_000
SLICE_BYTES = 4_000_000
"""A slice ends at whichever comes first; a single larger payload still makes a slice."""

WALK = 200_000
MEASURE = 100_000
"""Most index entries one statement visits, so that the heartbeat is never late behind a huge difference."""

_QUERIES = {
    name: body.encode()
    for name, body in re.findall(
        r"^-- (\w+)\n(.*?)(?=^-- \w+$|\Z)",
        Path(__file__).with_suffix(".sql").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
}


@dataclass(frozen=True, slots=True)
class Position:
    """How far the relay is. With `cur`: inside the difference prev..cur, up to `after_seq` of at most `until_seq`."""

    prev: str
    cur: str | None = None
    after_seq: int = 0
    until_seq: int = 0

    def unseen(self) -> tuple[int, list[int]]:
        """What `prev` did not see: every transaction from the first id on, and those that were running."""
        _xmin, xmax, running = self.prev.split(":")
        return int(xmax), [int(xid) for xid in running.split(",") if xid]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows in order, and the position that is true once all of them are confirmed."""

    rows: list[Row]
    end: Position
    more: bool
    """Whether there is known to be more behind it."""


class Cursor:
    """Reads slice after slice, ahead of what is confirmed. Stores nothing."""

    def __init__(
        self, connection: Connection, order: Order, position: Position, between: Callable[[], None] = lambda: None
    ) -> None:
        """`between` is called between two statements of one slice (the heartbeat)."""
        self.position = position
        self.known = position.until_seq - position.after_seq
        """Rows of the difference being walked that were not read yet."""
        self.last_value = 0
        """The highest number any writer had drawn at the last read of new rows."""
        self._connection = connection
        self._strict = order == "strict"
        self._between = between
        self._asked: tuple[ExitStack, Answer] | None = None
        self._answer: list[Row] | None = None

    def ask(self) -> None:
        """Let Postgres read the next slice of a large difference while the caller is busy with this one.

        Nothing else may run on the connection before `collect` (or `next`, which collects).
        """
        if self.position.cur is None:
            return
        stack = ExitStack()
        stack.enter_context(self._connection.pipeline())
        self._asked = stack, self._execute("walk", self._stretch())

    def collect(self) -> None:
        """Take in what was asked for, if anything was."""
        if self._asked is not None:
            stack, answer = self._asked
            self._asked = None
            with stack:
                self._answer = answer.fetchall()

    def next(self) -> Slice:
        """The next slice; empty with `more` false when nothing new is committed."""
        self.collect()
        piece = self._read() if self.position.cur is None else self._walk()
        self.position = piece.end
        return piece

    def _read(self) -> Slice:
        here = self.position
        low, running = here.unseen()
        values = {
            "prev": here.prev,
            "low": str(low),
            "running": [str(xid) for xid in running],
            "strict": self._strict,
        }
        found = self._execute("read", values).fetchall()
        cur, count, self.last_value = found[0][:3]
        if count == 0:
            return Slice([], Position(cur), more=False)
        if found[0][3] is not None:
            return Slice([row[3:] for row in found], Position(cur), more=False)
        self.known, first, last = self._measure(here.prev, cur, low, running)
        return Slice([], Position(here.prev, cur, first - 1, last), more=True)

    def _walk(self) -> Slice:
        here, stretch = self.position, self._stretch()
        rows: list[Row] = self._execute("walk", stretch).fetchall() if self._answer is None else self._answer
        self._answer = None
        cut = len(rows) == SLICE_ROWS or sum(len(row[3]) for row in rows) >= SLICE_BYTES
        after: int = rows[-1][0] if cut else stretch["upto"]
        self.known = max(0, self.known - len(rows))
        if after >= here.until_seq:
            self.known = 0
            return Slice(rows, Position(here.cur or here.prev), more=True)
        return Slice(rows, replace(here, after_seq=after), more=True)

    def _stretch(self) -> dict[str, Any]:
        here = self.position
        upto = min(here.after_seq + WALK, here.until_seq)
        return {"prev": here.prev, "cur": here.cur, "after": here.after_seq, "upto": upto}

    def _measure(self, prev: str, cur: str, low: int, running: list[int]) -> tuple[int, int, int]:
        """How many rows the difference has, its lowest and its highest number: where the walk starts and ends."""
        count, firsts, lasts = 0, [], []
        for start, end in [*((xid, xid + 1) for xid in running), (low, int(cur.split(":")[1]))]:
            at: tuple[str, int] | None = (str(start), 0)
            while at is not None:
                self._between()
                values = {"prev": prev, "cur": cur, "low": at[0], "seq": at[1], "high": str(end)}
                at = None
                for xid, seq, members, first, last in self._execute("measure", values).fetchall():
                    at = (xid, seq)
                    if members:
                        count += members
                        firsts.append(first)
                        lasts.append(last)
        return count, min(firsts), max(lasts)

    def _execute(self, query: str, values: Mapping[str, Any]) -> Answer:
        bounds = {"rows": SLICE_ROWS, "bytes": SLICE_BYTES, "entries": MEASURE}
        return self._connection.cursor(binary=True).execute(_QUERIES[query], {**values, **bounds}, prepare=True)
