-- Several instances on one database: how long each one's lease lasts, whose is past its end or was copied, what each
-- did for an erasure, and who runs an operation.

alter table instance
    add column lease_ms bigint not null default 5000 check (lease_ms between 0 and 3600000),
    add column expired_at timestamptz,         -- its lease was seen to have run out: it joins anew or not at all
    add column ended_at timestamptz,           -- it left in order, and holds nothing
    add column cloned boolean not null default false, -- two processes had this incarnation
    add column keys_sha256 bytea check (octet_length(keys_sha256) = 32); -- of the public keys it signs with
-- The pair is what every transaction of an instance holds on to (FOR KEY SHARE): a renewal does not wait for it, the
-- next incarnation does.
create unique index instance_token on instance (id, incarnation);

-- Who stopped using an erased session, and how; until then what there was of it on that instance.
create table erasure_instance (
    erasure_id bytea not null references erasure (id),
    instance_id id16 not null,
    incarnation bigint not null check (incarnation > 0),
    reported_at timestamptz,                   -- by the instance itself, before it acknowledged
    journal_seq bigint check (journal_seq >= 0), -- its transfer records up to here are to be in the log first
    blocks bigint not null default 0 check (blocks >= 0),
    bytes bigint not null default 0 check (bytes >= 0),
    dram_blocks bigint not null default 0 check (dram_blocks >= 0),
    dram_bytes bigint not null default 0 check (dram_bytes >= 0),
    nvme_blocks bigint not null default 0 check (nvme_blocks >= 0),
    nvme_bytes bigint not null default 0 check (nvme_bytes >= 0),
    block_root bytea check (octet_length(block_root) = 32),
    samples integer not null default 0 check (samples >= 0),
    sample_headers bytea check (octet_length(sample_headers) <= 1048576),
    fenced_how text check (fenced_how in ('self', 'acked', 'expired')),
    fenced_at timestamptz,
    purged_how text check (purged_how in ('self', 'acked', 'expired')),
    purged_at timestamptz,
    primary key (erasure_id, instance_id),
    check ((fenced_how is null) = (fenced_at is null)),
    check ((purged_how is null) = (purged_at is null))
);

-- Null: anybody's.
alter table operation add column instance_id bytea check (octet_length(instance_id) = 16);
