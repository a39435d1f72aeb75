-- Versions of each tenant's key, and of each session which version its key was made in. A version is a state of the
-- whole tree of a tenant: a rotation gives every node of it a fresh secret and destroys the root that the old ones hung
-- under. Nothing here is a key: a fingerprint is one way.

create table tenant_key (
    id id16 primary key,
    tenant_id bytea not null references tenant (id),
    version integer not null check (version > 0),
    state text not null default 'pre_activation'
        check (state in ('pre_activation', 'active', 'deactivated', 'destroyed')),
    fingerprint bytea check (octet_length(fingerprint) = 16), -- null: not in use yet, or older than this table
    created_at timestamptz not null,
    activated_at timestamptz,
    destroyed_at timestamptz,
    compromised_at timestamptz,                -- somebody said so
    operation_id bytea check (octet_length(operation_id) = 16), -- the rotation that made it; null: the first one
    failed text check (octet_length(failed) between 1 and 64), -- why that rotation cannot be done
    batch_id bytea references erase_batch (id), -- the change of the root that ended it
    unique (tenant_id, version),
    check ((state = 'pre_activation') = (activated_at is null)),
    check ((state = 'destroyed') = (destroyed_at is not null)),
    check (state not in ('deactivated', 'destroyed') or batch_id is not null),
    check ((version = 1) = (operation_id is null)),
    check (failed is null or state = 'pre_activation')
);
create unique index tenant_key_active on tenant_key (tenant_id) where state = 'active';
create unique index tenant_key_next on tenant_key (tenant_id) where state = 'pre_activation';
create index tenant_key_by_time on tenant_key (tenant_id, created_at, id);
create index tenant_key_by_batch on tenant_key (batch_id) where batch_id is not null;
create index tenant_key_to_rotate on tenant_key (created_at) where state = 'pre_activation' and operation_id is not null;

-- The tenant's id will do as the id of its first version.
insert into tenant_key (id, tenant_id, version, state, created_at, activated_at)
    select id, id, 1, case when next_slot = 0 then 'pre_activation' else 'active' end, created_at,
           case when next_slot = 0 then null else created_at end
    from tenant;

alter table tenant add column key_version integer not null default 1 check (key_version > 0);
alter table session
    add column key_version integer not null default 1 check (key_version > 0),
    add column key_fingerprint bytea check (octet_length(key_fingerprint) = 16); -- null: older than this column
create index session_by_key_version on session (tenant_id, key_version) where state <> 'erased';
