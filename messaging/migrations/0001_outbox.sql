-- The outbox: events and jobs are written here in the caller's own transaction; the relay carries them to Kafka.
-- seq is handed out before commit, so it orders the rows of one batch but is never a cursor: xid decides who is read.
CREATE TABLE outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id uuid NOT NULL,
    topic text NOT NULL CHECK (octet_length(topic) BETWEEN 1 AND 249),
    key text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
    type text NOT NULL CHECK (octet_length(type) BETWEEN 1 AND 255),
    version integer NOT NULL CHECK (version >= 1),
    payload bytea NOT NULL CHECK (octet_length(payload) <= 900000),
    source text NOT NULL CHECK (octet_length(source) BETWEEN 1 AND 1024),
    subject text NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 1024),
    traceparent text CHECK (octet_length(traceparent) <= 255),
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (occurred_at);

CREATE INDEX outbox_xid_seq ON outbox (xid, seq);
CREATE INDEX outbox_seq ON outbox (seq);

-- Catches rows of a clock that is far off, so that an insert is never refused for its time.
CREATE TABLE outbox_default PARTITION OF outbox DEFAULT;

-- How far a relay has come. Everything visible in `prev` is confirmed by Kafka; while a large difference is walked in
-- slices, `cur` is its far side and rows up to `after_seq` (of at most `until_seq`) are confirmed too.
CREATE TABLE relay_position (
    name text PRIMARY KEY,
    prev pg_snapshot NOT NULL,
    cur pg_snapshot,
    after_seq bigint NOT NULL DEFAULT 0,
    until_seq bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 0,
    system_identifier bigint NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);

-- The heartbeat of the process that leads, by this database's clock.
CREATE TABLE relay_leader (
    name text PRIMARY KEY,
    backend integer NOT NULL,
    process text NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    backlog bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

-- Up to which seq writers may go before the outbox counts as full. It stands still while nothing drains.
-- Apart from the heartbeat because every insert reads it: it must stay one live row, seldom updated.
CREATE TABLE outbox_limit (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    ceiling bigint NOT NULL
) WITH (fillfactor = 20);

-- Rows Kafka refused for good, whole, so that they can be sent again after the cause is gone.
CREATE TABLE outbox_refused (
    seq bigint PRIMARY KEY,
    id uuid NOT NULL,
    topic text NOT NULL,
    key text NOT NULL,
    type text NOT NULL,
    version integer NOT NULL,
    payload bytea NOT NULL,
    source text NOT NULL,
    subject text NOT NULL,
    traceparent text,
    occurred_at timestamptz NOT NULL,
    error text NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Runs once per INSERT statement, whoever wrote it. The relay holds lock (1987, 1) exclusively only while it sleeps.
-- A writer that gets the lock shared keeps it to the end of its transaction, so the relay cannot fall asleep before
-- that commit is visible to it; a writer that does not get it rings the bell.
CREATE FUNCTION outbox_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox_limit WHERE ceiling <= (SELECT last_value FROM outbox_seq_seq)) THEN
        RAISE EXCEPTION 'the outbox is full' USING ERRCODE = 'WB503';
    END IF;
    IF NOT pg_try_advisory_xact_lock_shared(1987, 1) THEN
        PERFORM pg_notify('outbox', '');
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER outbox_before_insert BEFORE INSERT ON outbox
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_before_insert();

-- Creates the partitions of the coming days and drops those past the replay window, once every row in them is
-- confirmed to every relay. Owned by the schema's owner: the service's own role has no DDL. Never waits long for a
-- lock, because writers would queue behind it; what could not be done is done in the next run.
CREATE FUNCTION outbox_maintain(keep interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    day date;
    part text;
    blocked boolean;
    dropped integer := 0;
BEGIN
    FOR ahead IN 0..3 LOOP
        day := today + ahead;
        part := 'outbox_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('public.' || part) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE public.%I (LIKE public.outbox INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
            EXECUTE format('ALTER TABLE public.outbox ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)',
                part, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
        EXCEPTION WHEN lock_not_available OR check_violation OR duplicate_table THEN
            RAISE WARNING 'outbox partition % not created: %', part, SQLERRM;
        END;
    END LOOP;

    IF NOT EXISTS (SELECT FROM relay_position) THEN
        RETURN dropped;
    END IF;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'public.outbox'::regclass AND c.relname ~ '^outbox_[0-9]{8}$'
            AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' < clock_timestamp() - keep
        ORDER BY c.relname
    LOOP
        BEGIN
            LOCK TABLE ONLY public.outbox IN ACCESS EXCLUSIVE MODE;
            EXECUTE format('LOCK TABLE public.%I IN ACCESS EXCLUSIVE MODE', part);
            EXECUTE format(
                'SELECT EXISTS (SELECT FROM relay_position r WHERE'
                ' EXISTS (SELECT FROM public.%1$I WHERE xid >= pg_snapshot_xmax(r.prev))'
                ' OR EXISTS (SELECT FROM public.%1$I WHERE xid IN (SELECT pg_snapshot_xip(r.prev))))', part) INTO blocked;
            IF NOT blocked THEN
                EXECUTE format('DROP TABLE public.%I', part);
                dropped := dropped + 1;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            RAISE WARNING 'outbox partition % not dropped: %', part, SQLERRM;
        END;
    END LOOP;

    DELETE FROM outbox_default d WHERE occurred_at < clock_timestamp() - keep
        AND NOT EXISTS (SELECT FROM relay_position r WHERE NOT pg_visible_in_snapshot(d.xid, r.prev));
    RETURN dropped;
END
$$;

-- For an operator, after the database was restored into another cluster, where the stored transaction ids mean
-- nothing: rows since a given time are sent again, older ones are forgotten.
CREATE FUNCTION relay_adopt(relay text, since timestamptz) RETURNS bigint
LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    again bigint;
BEGIN
    LOCK TABLE outbox IN EXCLUSIVE MODE;
    DELETE FROM outbox WHERE occurred_at < since;
    UPDATE outbox SET xid = pg_current_xact_id();
    GET DIAGNOSTICS again = ROW_COUNT;
    UPDATE relay_position SET prev = '1:1:', cur = NULL, after_seq = 0, until_seq = 0, version = version + 1,
        system_identifier = (SELECT system_identifier FROM pg_control_system())
        WHERE name = relay;
    RETURN again;
END
$$;
REVOKE EXECUTE ON FUNCTION relay_adopt(text, timestamptz) FROM PUBLIC;

-- The oldest transaction of the whole cluster that has written and is still open: the one `strict` waits for.
-- Owned by a role that may read all statistics; shows no statement text.
CREATE FUNCTION outbox_oldest_writer()
RETURNS TABLE (holder text, database text, application text, state text, age_seconds double precision)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT holder, database, application, state, extract(epoch FROM clock_timestamp() - since)::double precision
    FROM (
        SELECT 'backend ' || pid AS holder, datname::text AS database, application_name AS application, state,
            xact_start AS since
        FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL
        SELECT 'prepared transaction ' || gid, database::text, '', 'prepared', prepared FROM pg_prepared_xacts
    ) AS writers
    ORDER BY since LIMIT 1
$$;

SELECT outbox_maintain('7 days');
