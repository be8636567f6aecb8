-- Whose data was erased and when, so that what is still on its way on Kafka does not bring it back. It holds no name.
create table erasures (
    owner     bytea       primary key,  -- SHA-256 of "<tenant>:<sender>"
    erased_at timestamptz not null
);

-- An advisory lock's number for a sender.
create function erasure_lock(owner bytea) returns bigint language sql immutable parallel safe
return ('x' || encode(substr(owner, 1, 8), 'hex'))::bit(64)::bigint;

-- Which of these senders were erased, and when. Whoever asks keeps a new mark of theirs away until its transaction
-- ends. A function's statements each see what was committed before them: the mark is read after the wait for it.
create function erased_when(owners bytea[]) returns table (owner bytea, erased_at timestamptz)
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock_shared(lock)
    from (select distinct erasure_lock(asked) as lock from unnest(owners) as asked order by 1) as locks;
    return query select e.owner, e.erased_at from erasures e where e.owner = any(owners);
end
$$;
