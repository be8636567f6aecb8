-- Which events were begun and not settled yet, and how often. A row is written before each try, so that an event that
-- takes its process along is found out; it goes when the event is counted or set aside.
create table event_tries (
    topic       text        not null,
    partition   integer     not null,
    at_offset   bigint      not null,
    tries       integer     not null check (tries >= 0),
    reason      text,  -- of the last try that failed, for the dead letter: for machines
    error       text,  -- and for people
    began_at    timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp(),
    primary key (topic, partition, at_offset)
) with (fillfactor = 70);
