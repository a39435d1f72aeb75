-- What an erased session leaves in the tiers is dropped after its certificate. Who has dropped all of it, durably, and
-- the statement that is signed when all have that may have had some.

-- nvme folders that instances used, by what lies in them: the same one wherever it is mounted, another one when it was
-- emptied.
create table nvme_folder (
    id id16 primary key,
    instance_id id16 not null,                 -- that uses it, or did last
    left_at timestamptz                        -- no session that was made later has anything in it; null: in use
);
-- Whether an instance ever said which folder it has, if any. One that left before it did may have left one behind.
alter table instance add column folder_known boolean not null default false;

create table erasure_clean (
    erasure_id bytea not null references erasure (id),
    instance_id id16 not null,
    folder_id id16 not null,                   -- zeroes: it has none
    incarnation bigint not null check (incarnation > 0),
    cleaned_at timestamptz not null,
    primary key (erasure_id, instance_id, folder_id)
);

create table erasure_upgrade (
    erasure_id bytea primary key references erasure (id),
    look_at timestamptz,                       -- when to see next whether all have; null: the statement is there
    upgrade_id bytea unique check (octet_length(upgrade_id) = 16),
    jws bytea check (octet_length(jws) between 1 and 65535),
    issued_at timestamptz,
    leaf_index bigint check (leaf_index >= 0),
    bundle bytea check (octet_length(bundle) between 1 and 1048576),
    check (num_nonnulls(upgrade_id, jws, issued_at) in (0, 3)),
    check ((bundle is null) = (leaf_index is null)),
    check (bundle is null or jws is not null),
    check ((look_at is null) = (bundle is not null))
);
create index erasure_upgrade_to_look on erasure_upgrade (look_at) where look_at is not null;

alter table erasure add column upgraded boolean not null default false; -- its statement is there
create index erasure_to_clean on erasure (certified_at) where certified_at is not null and not upgraded;
