-- Senders whose counts are to go. Only the process that counts can write its tables: it takes a row up and says when it
-- is done. It holds no name.
create table count_erasures (
    owner    bytea       primary key,  -- SHA-256 of "<tenant>:<sender>", as in `erasures`
    asked_at timestamptz not null,
    done_at  timestamptz,
    keys     integer                   -- how many keys of the table went
);
