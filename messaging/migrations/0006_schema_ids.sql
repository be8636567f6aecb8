-- The schema ids this service writes its events with, as the registry last told them. They are read only while it is
-- away: a process can then start without it. Kept by what was asked, so a schema that was changed has none yet.
create table schema_ids (
    subject     text        not null,
    fingerprint bytea       not null,  -- SHA-256 of the schema's text
    id          integer     not null check (id >= 0),
    learnt_at   timestamptz not null default clock_timestamp(),
    primary key (subject, fingerprint)
);
