-- What people asked their tenant's teams for: one row per request, written together with its event.
create table requests (
    id              uuid        primary key,
    tenant          text        not null,
    sender          text        not null,
    team            text        not null,
    title           text        not null,
    body            text        not null,
    channel         text        not null default 'api' check (channel in ('api', 'chat', 'message')),
    idempotency_key text,
    fingerprint     bytea       not null,   -- tells a repeat from another request under the same key
    created_at      timestamptz not null default clock_timestamp()
);

create unique index requests_idempotency on requests (tenant, sender, idempotency_key)
    where idempotency_key is not null;

-- Ids are UUID version 7, so their order is the order of arrival.
create index requests_tenant on requests (tenant, id desc);
create index requests_sender on requests (tenant, sender, id desc);
create index requests_team on requests (tenant, team, id desc);
