-- read
-- What this statement sees and the position does not. Rows and snapshot come from one statement: two statements have
-- two snapshots, and what commits between them would be skipped. More rows or bytes than a slice: none, only `rows`.
WITH edge AS (
    SELECT CASE
            WHEN NOT %(strict)s THEN pg_snapshot_xmax(now)
            WHEN pg_snapshot_xmin(now) >= pg_snapshot_xmax(prev) THEN pg_snapshot_xmin(now)
        END AS horizon,
        CASE
            WHEN NOT %(strict)s THEN now::text
            WHEN pg_snapshot_xmin(now) >= pg_snapshot_xmax(prev) THEN format('%%1$s:%%1$s:', pg_snapshot_xmin(now))
            ELSE prev::text
        END AS cur
    FROM (SELECT pg_current_snapshot() AS now, %(prev)s::pg_snapshot AS prev) AS snapshots
), found AS MATERIALIZED (
    SELECT seq, topic, key, payload, id, source, type, occurred_at, subject, version, traceparent FROM outbox
    WHERE xid >= %(low)s::xid8 AND xid < (SELECT horizon FROM edge)
    UNION ALL
    SELECT seq, topic, key, payload, id, source, type, occurred_at, subject, version, traceparent FROM outbox
    WHERE xid = ANY (%(running)s::xid8[]) AND xid < (SELECT horizon FROM edge)
    LIMIT %(rows)s + 1
), total AS (
    SELECT count(*) AS rows, coalesce(sum(octet_length(payload)), 0) AS bytes, min(seq) AS first FROM found
)
SELECT CASE WHEN f.seq IS NULL OR f.seq = t.first THEN (SELECT cur FROM edge) END, t.rows,
    (SELECT last_value FROM outbox_seq_seq), f.seq, f.topic, f.key, f.payload, f.id::text, f.source, f.type,
    to_char(f.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), f.subject, f.version::text,
    f.traceparent
FROM total t LEFT JOIN found f ON t.rows <= %(rows)s AND (t.bytes <= %(bytes)s OR t.rows = 1)
ORDER BY f.seq

-- walk
-- The next slice of a large difference. Only functions of xid here: a comparison would offer the planner the index on
-- (xid, seq), and with it a sort of all the rest.
SELECT f.seq, f.topic, f.key, f.payload, f.id::text, f.source, f.type,
    to_char(f.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), f.subject, f.version::text,
    f.traceparent
FROM (
    SELECT *, sum(octet_length(payload)) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - octet_length(payload) AS before
    FROM (
        SELECT seq, topic, key, payload, id, source, type, occurred_at, subject, version, traceparent FROM outbox
        WHERE seq > %(after)s AND seq <= %(upto)s AND pg_visible_in_snapshot(xid, %(cur)s::pg_snapshot)
            AND NOT pg_visible_in_snapshot(xid, %(prev)s::pg_snapshot)
        ORDER BY seq LIMIT %(rows)s
    ) AS found
) AS f
WHERE before < %(bytes)s
ORDER BY seq

-- measure
-- One stretch of the index on (xid, seq): where it ended, and how many rows of the difference it holds, from which
-- number to which.
WITH chunk AS MATERIALIZED (
    SELECT xid, seq FROM outbox
    WHERE (xid, seq) > (%(low)s::xid8, %(seq)s) AND xid < %(high)s::xid8
    ORDER BY xid, seq LIMIT %(entries)s
), members AS (
    SELECT seq FROM chunk WHERE pg_visible_in_snapshot(xid, %(cur)s::pg_snapshot)
        AND NOT pg_visible_in_snapshot(xid, %(prev)s::pg_snapshot)
)
SELECT last.xid::text, last.seq, (SELECT count(*) FROM members), (SELECT min(seq) FROM members),
    (SELECT max(seq) FROM members)
FROM (SELECT xid, seq FROM chunk ORDER BY xid DESC, seq DESC LIMIT 1) AS last
