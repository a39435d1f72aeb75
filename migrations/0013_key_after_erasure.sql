-- A tenant that was erased in one step goes on with the next version of its key: the erasure ends the version that was
-- in use, before its batch is known.

alter table tenant_key add column erasure_id bytea references erasure (id); -- of all of the tenant, that ended it
alter table tenant_key drop constraint tenant_key_check3, drop constraint tenant_key_check2;
alter table tenant_key
    add constraint tenant_key_ends_by_something check (
        case state when 'deactivated' then batch_id is not null or erasure_id is not null
                   when 'destroyed' then batch_id is not null else true end),
    add constraint tenant_key_first_has_no_rotation check (version > 1 or operation_id is null);
