-- What was decided on long ago is cleared, and its identity kept: the topics keep the record for ever, and whoever
-- projects them from the beginning must find that it was decided on. Such a row is in no index but its identity's.
alter table dead_letters add column cleared_at timestamptz;

alter table dead_letters add check (
    cleared_at is null
    or (state in ('sent', 'discarded')
        and num_nonnulls(key, value, header_names, header_values, error, tenant, owner) = 0)
);

drop index dead_letters_tenant, dead_letters_state, dead_letters_owner, dead_letters_unowned, dead_letters_resolved;

create index dead_letters_tenant on dead_letters (tenant, id desc) where cleared_at is null;
create index dead_letters_state on dead_letters (tenant, state, id desc) where cleared_at is null;
create index dead_letters_owner on dead_letters (tenant, owner, id desc) where cleared_at is null;
create index dead_letters_unowned on dead_letters (source, id) where tenant is null and cleared_at is null;
create index dead_letters_resolved on dead_letters (decided_at)
    where state in ('sent', 'discarded') and cleared_at is null;
