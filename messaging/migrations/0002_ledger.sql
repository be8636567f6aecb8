-- The ledger: what became of each job of each consumer. One row per (consumer, message, generation).
create table ledger (
    consumer    text        not null,
    message_id  text        not null,
    generation  integer     not null default 0,
    state       text        not null check (state in ('started', 'retrying', 'released', 'suspect', 'done', 'dead')),
    failures    integer     not null default 0,  -- runs that ended in a failure that was charged
    strikes     integer     not null default 0,  -- runs whose process died under them
    token       bigint      not null,            -- who may write the outcome: the fence
    worker      bigint      not null,
    next_at     timestamptz,                     -- for 'retrying': not before, by this database's clock
    started_at  timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp(),
    primary key (consumer, message_id, generation)
) with (fillfactor = 70);

create index ledger_updated on ledger (updated_at) where state in ('done', 'dead');

-- One row per run of a job: when it became ready, when it held a slot, how it ended. For people and audits;
-- written in batches after the slot is free, so a crash may leave the last few out (the ledger never).
create table ledger_attempts (
    consumer    text             not null,
    message_id  text             not null,
    generation  integer          not null,
    attempt     integer          not null,
    tenant      text             not null,
    sender      text             not null,
    subject     text,
    worker      bigint           not null,
    ready_at    timestamptz      not null,
    started_at  timestamptz      not null,
    finished_at timestamptz      not null,
    outcome     text             not null,
    lent        boolean          not null default false,
    error       text
);

create index ledger_attempts_message on ledger_attempts (consumer, message_id);
create index ledger_attempts_finished on ledger_attempts using brin (finished_at);
create index ledger_attempts_tenant on ledger_attempts (tenant, finished_at);

-- Which processes run jobs. A worker holds the advisory lock (ledger_workers' oid, id) on the connection that beats.
create table ledger_workers (
    id         bigint generated always as identity primary key,
    consumer   text        not null,
    started_at timestamptz not null default clock_timestamp(),
    beat_at    timestamptz not null default clock_timestamp()
);
