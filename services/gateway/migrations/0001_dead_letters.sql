-- Every dead letter of every consumer, as its topic has it, and what a person has decided about it.
create table dead_letters (
    id            uuid        primary key,          -- version 7: their order is the order of arrival here
    source        text        not null,             -- the topic its consumer reads
    consumer      text        not null,
    message_id    text        not null,
    generation    integer     not null,             -- how often it had been sent back when it died
    tenant        text,                             -- null: its key says nothing usable, so nobody owns it
    owner         text,                             -- the sender
    type          text,
    subject       text,
    reason        text        not null,
    error         text,
    attempts      integer,
    origin        text        not null,             -- topic/partition/offset where it was first written
    topic         text        not null,             -- where this letter lies
    "partition"   integer     not null,
    "offset"      bigint      not null,
    died_at       timestamptz not null,
    stored_at     timestamptz not null default clock_timestamp(),

    -- The original record, byte for byte; the headers' names and values in order, repeats and nulls included.
    key           bytea,
    value         bytea,
    header_names  bytea[],                          -- null: the client cannot read them
    header_values bytea[],
    size_bytes    bigint      not null,

    state         text        not null default 'open' check (state in ('open', 'sending', 'sent', 'discarded')),
    decided_by    text,
    decided_at    timestamptz,
    leased_until  timestamptz,                      -- 'sending': until then one process is at it
    sent_at       timestamptz,
    send_error    text,                             -- why Kafka would not take it back
    check ((state = 'open') = (decided_at is null)),
    check ((header_names is null) = (header_values is null))
);

create unique index dead_letters_identity on dead_letters (source, consumer, message_id, generation);

create index dead_letters_tenant on dead_letters (tenant, id desc);
create index dead_letters_state on dead_letters (tenant, state, id desc);
create index dead_letters_owner on dead_letters (tenant, owner, id desc);
create index dead_letters_sending on dead_letters (decided_at, id) where state = 'sending';
create index dead_letters_unowned on dead_letters (source, id) where tenant is null;
