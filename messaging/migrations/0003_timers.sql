-- One row per timer of the service. A run is claimed by compare-and-set on `token`, by this database's clock.
CREATE TABLE timers (
    name text PRIMARY KEY,
    every_seconds double precision NOT NULL CHECK (every_seconds > 0),
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    token uuid,
    leased_until timestamptz,
    failures integer NOT NULL DEFAULT 0,
    last_error text,
    last_run_at timestamptz
) WITH (fillfactor = 50);
