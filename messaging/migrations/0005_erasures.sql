-- Whose data was erased and when, so that what is still on its way on Kafka does not bring it back. It holds no name.
create table erasures (
    owner     bytea       primary key,  -- SHA-256 of "<tenant>:<sender>"
    erased_at timestamptz not null
);
