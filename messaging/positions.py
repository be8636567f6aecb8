"""Where the relay is, in the database: moved by compare-and-set, on the connection that holds the lead."""

from collections.abc import Sequence

from messaging.cursor import Connection, Position, Row
from messaging.errors import Misconfigured
from messaging.leader import LostLead


class Positions:
    """The stored position of one relay. Whoever moves it must be the last one who read or moved it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._version = 0
        self._place = ""

    def load(self) -> Position:
        """The position; from the very beginning if there is none.

        Raises Misconfigured when it was stored by another cluster: its transaction ids mean nothing here.
        """
        self._connection.execute(
            """
            INSERT INTO relay_position (name, prev, system_identifier)
            SELECT %s, '1:1:', system_identifier FROM pg_control_system() ON CONFLICT (name) DO NOTHING
            """,
            [self._name],
        )
        row = self._connection.execute(
            """
            SELECT prev::text, cur::text, after_seq, until_seq, version, ctid::text,
                system_identifier = (SELECT system_identifier FROM pg_control_system())
            FROM relay_position WHERE name = %s
            """,
            [self._name],
        ).fetchone()
        if row is None:
            raise LostLead("The relay's position was removed while it started.")
        if not row[6]:
            raise Misconfigured(
                f"The position of relay {self._name} was stored by another Postgres cluster (a restored copy?). "
                "Decide since when events must be sent again and run, as the owner of the schema: "
                f"SELECT relay_adopt('{self._name}', '<time>')"
            )
        self._version, self._place = row[4], row[5]
        return Position(*row[:4])

    def move(self, position: Position, refused: Sequence[tuple[Row, str]] = ()) -> None:
        """Store that everything up to `position` is confirmed, but for the refused rows, which are set aside.

        Raises LostLead when somebody else has moved it.
        """
        if not refused:
            self._advance(position)
            return
        with self._connection.transaction():
            self._connection.execute(
                """
                INSERT INTO outbox_refused (seq, id, topic, key, type, version, payload, source, subject, traceparent,
                    occurred_at, error)
                SELECT o.seq, o.id, o.topic, o.key, o.type, o.version, o.payload, o.source, o.subject, o.traceparent,
                    o.occurred_at, r.error
                FROM unnest(%s::bigint[], %s::text[]) AS r (seq, error) JOIN outbox o USING (seq)
                ON CONFLICT (seq) DO NOTHING
                """,
                [[row[0] for row, _ in refused], [error for _, error in refused]],
            )
            self._advance(position)

    def _advance(self, position: Position) -> None:
        # By place, not by name: while somebody holds an old snapshot, every version of this row stays, and a look-up
        # by name would pass through them all.
        if self._swap(position):
            return
        row = self._connection.execute(
            "SELECT ctid::text FROM relay_position WHERE name = %s AND version = %s", [self._name, self._version]
        ).fetchone()
        if row is not None:
            self._place = row[0]
        if row is None or not self._swap(position):
            raise LostLead("Another process has moved the relay's position.")

    def _swap(self, position: Position) -> bool:
        row = self._connection.execute(
            """
            UPDATE relay_position SET prev = %(prev)s, cur = %(cur)s, after_seq = %(after)s, until_seq = %(until)s,
                version = version + 1, moved_at = clock_timestamp()
            WHERE ctid = %(place)s::tid AND name = %(name)s AND version = %(version)s
            RETURNING version, ctid::text
            """,
            {
                "prev": position.prev,
                "cur": position.cur,
                "after": position.after_seq,
                "until": position.until_seq,
                "place": self._place,
                "name": self._name,
                "version": self._version,
            },
            prepare=True,
        ).fetchone()
        if row is None:
            return False
        self._version, self._place = row
        return True
