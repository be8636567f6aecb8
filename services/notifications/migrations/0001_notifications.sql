-- The number of each tenant's newest notification. Drawing the next one locks the row until the transaction ends, so
-- numbers are committed in their order: a reader that has seen number n has seen, or could have seen, all below it.
create table feeds (
    tenant   text   primary key,
    last_seq bigint not null
) with (fillfactor = 20);

-- What people are told, once per event and audience: a person, or all who work for a team.
create table notifications (
    id            uuid        primary key,
    tenant        text        not null,
    seq           bigint      not null,
    event_id      text        not null,
    audience_kind text        not null check (audience_kind in ('person', 'team')),
    audience      text        not null,
    about         text,                             -- whose doing it is about: when they are erased it goes with them
    kind          text        not null,
    title         text        not null,
    body          text        not null,
    href          text        not null,
    created_at    timestamptz not null default clock_timestamp()
);

create unique index notifications_once on notifications (event_id, audience_kind, audience);
create unique index notifications_seq on notifications (tenant, seq);
create index notifications_audience on notifications (tenant, audience_kind, audience, seq desc);
create index notifications_teams on notifications (tenant, seq desc) where audience_kind = 'team';
create index notifications_created on notifications (created_at);
create index notifications_about on notifications (tenant, about);

create table reads (
    notification uuid        not null references notifications on delete cascade,
    reader       text        not null,
    read_at      timestamptz not null default clock_timestamp(),
    primary key (notification, reader)
);

-- All that the reader sees, as staff or not, has been read up to this number: it is among the reads, and need not be
-- looked through again for what is unread.
create table read_up_to (
    tenant    text        not null,
    reader    text        not null,
    staff     boolean     not null,
    seq       bigint      not null,
    marked_at timestamptz not null default clock_timestamp(),
    primary key (tenant, reader, staff)
);

create index read_up_to_marked on read_up_to (marked_at);

-- Who wants to be told outside of the house too, and where.
create table subscriptions (
    id          uuid        primary key,
    tenant      text        not null,
    owner_kind  text        not null check (owner_kind in ('person', 'team')),
    owner       text        not null,
    channel     text        not null check (channel in ('email', 'webhook')),
    address     text        not null,
    secret      text,                               -- signs what a webhook is sent
    kinds       text[]      not null check (cardinality(kinds) > 0),
    created_by  text        not null,
    created_at  timestamptz not null default clock_timestamp(),
    disabled_at timestamptz,                        -- its receiver said that it is gone for good
    check ((channel = 'webhook') = (secret is not null))
);

create unique index subscriptions_address on subscriptions (tenant, owner_kind, owner, channel, address);

-- One notification on its way to one subscription. The id is the idempotency key that the receiver is told.
create table deliveries (
    id           uuid        primary key,
    tenant       text        not null,
    notification uuid        not null references notifications on delete cascade,
    subscription uuid        references subscriptions on delete set null,
    owner_kind   text        not null,
    owner        text        not null,
    channel      text        not null,
    address      text        not null,               -- as it was when the notification was made
    state        text        not null default 'queued' check (state in ('queued', 'sending', 'delivered', 'failed')),
    attempts     integer     not null default 0,     -- starts, those that a crash cut off included
    error        text,
    created_at   timestamptz not null default clock_timestamp(),
    updated_at   timestamptz not null default clock_timestamp(),
    delivered_at timestamptz
) with (fillfactor = 80);

create unique index deliveries_once on deliveries (notification, subscription);
create index deliveries_tenant on deliveries (tenant, id desc);
create index deliveries_owner on deliveries (tenant, owner_kind, owner, id desc);
-- Those that people look for by their state: the few that are not delivered.
create index deliveries_state on deliveries (tenant, state, id desc) where state <> 'delivered';
create index deliveries_subscription on deliveries (subscription);
