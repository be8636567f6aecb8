-- The inbox: one row per document, from the moment it was accepted.
create table documents (
    id              uuid        primary key,
    tenant          text        not null,
    sender          text        not null,
    kind            text        not null check (kind in ('file', 'text', 'url')),
    status          text        not null default 'queued' check (status in
                        ('queued', 'reading', 'retrying', 'waiting_for_review', 'approved', 'rejected', 'failed')),
    file_name       text,
    content_type    text        not null,
    size_bytes      bigint      not null,
    storage_key     text,
    url             text,
    idempotency_key text,
    fingerprint     bytea       not null,   -- tells a repeat from another body under the same key
    generation      integer     not null default 0,
    attempts        integer     not null default 0,
    fields          jsonb       not null default '[]',  -- [{name, value, confidence}], in the order found
    model           text,
    error           text,
    created_at      timestamptz not null default clock_timestamp(),
    updated_at      timestamptz not null default clock_timestamp(),
    check (storage_key is not null or url is not null)
) with (fillfactor = 80);

create unique index documents_idempotency on documents (tenant, sender, idempotency_key)
    where idempotency_key is not null;

-- Ids are UUID version 7, so their order is the order of arrival.
create index documents_tenant on documents (tenant, id desc);
create index documents_sender on documents (tenant, sender, id desc);
create index documents_status on documents (tenant, status, id desc);

-- How many a sender has waiting.
create index documents_waiting on documents (tenant, sender) where status in ('queued', 'reading', 'retrying');
create index documents_storage_key on documents (storage_key) where storage_key is not null;
