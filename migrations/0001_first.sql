-- The first schema. Runs with search_path = kvrun, inside the migrator's transaction.
-- Ids are 16 bytes, hashes 32. A rule that a row can break by itself is a check here, so that no version of the
-- server, and no hand at psql, leaves a state behind that the server could not explain.

create domain id16 as bytea check (octet_length(value) = 16);
create domain hash32 as bytea check (octet_length(value) = 32);

create table cluster (
    one boolean primary key default true check (one),
    id id16 not null,
    next_directory_slot integer not null default 0 check (next_directory_slot between 0 and 262144),
    created_at timestamptz not null default now()
);

create table instance (
    id id16 primary key,
    incarnation bigint not null check (incarnation > 0),
    lease_until timestamptz not null,
    lease_ctr bigint not null check (lease_ctr > 0),
    acked_seq bigint not null default 0 check (acked_seq >= 0),
    acked_root bytea check (octet_length(acked_root) = 16),
    started_at timestamptz not null
);

create table tenant (
    id id16 primary key,
    name text not null unique check (name ~ '^[a-z0-9-]{1,63}$'),
    display_name text not null check (octet_length(display_name) <= 512),
    state text not null default 'active' check (state in ('active', 'suspended', 'erasing', 'erased')),
    directory_slot integer not null unique check (directory_slot between 0 and 262143),
    next_slot integer not null default 0 check (next_slot between 0 and 262144),
    certificate_sha256 text check (certificate_sha256 ~ '^[0-9a-f]{64}$'),
    created_at timestamptz not null
);

create table api_key (
    id id16 primary key,
    tenant_id bytea references tenant (id),
    kid text not null unique check (kid ~ '^[0-9A-Za-z]{8}$'),
    name text not null check (octet_length(name) <= 512),
    roles integer not null check (roles > 0),
    secret_sha256 hash32 not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    revoked_at timestamptz,
    check (expires_at > created_at)
);
create index api_key_by_tenant on api_key (tenant_id, id);

create table session (
    id id16 primary key,
    tenant_id bytea not null references tenant (id),
    slot integer not null check (slot between 0 and 262143),
    state text not null default 'active' check (state in ('active', 'erasing', 'erased')),
    model_id text not null check (octet_length(model_id) <= 512),
    model_revision text not null check (octet_length(model_revision) <= 512),
    model_fingerprint text not null check (octet_length(model_fingerprint) <= 512),
    created_at timestamptz not null,
    created_by bytea check (octet_length(created_by) = 16),
    revoked_seq bigint unique check (revoked_seq > 0),
    erasure_id bytea unique,
    unique (tenant_id, slot),
    -- Active means never revoked, and nothing leaves that state without a number and an erasure that explains it.
    check ((state = 'active') = (revoked_seq is null)),
    check ((state = 'active') = (erasure_id is null))
);
create index session_by_tenant on session (tenant_id, id);

create table kroot (
    one boolean primary key default true check (one),
    root_id id16 not null,
    provider text not null check (provider ~ '^[a-z0-9_]{1,31}$'),
    blob bytea not null check (octet_length(blob) between 1 and 65536),
    fence bigint not null default 0 check (fence >= 0),
    eraser bytea check (octet_length(eraser) = 16),
    updated_at timestamptz not null default now()
);

create table ktree_node (
    tree id16 not null,
    level integer not null check (level between 0 and 7),
    idx integer not null check (idx >= 0),
    node_id id16 not null,
    node_ver bigint not null check (node_ver > 0),
    sealed bytea not null check (octet_length(sealed) between 1 and 8192),
    primary key (tree, level, idx)
);
-- Sealed bytes do not compress, and a node is always read whole.
alter table ktree_node alter column sealed set storage external;

create table revocation_head (
    one boolean primary key default true check (one),
    seq bigint not null check (seq >= 0)
);
insert into revocation_head (seq) values (0);

create table erase_batch (
    id id16 primary key,
    old_root id16 not null,
    new_root id16 not null unique,
    state text not null default 'staged'
        check (state in ('staged', 'rekeyed', 'destroyed', 'purged', 'done', 'abandoned')),
    fence bigint not null check (fence > 0),
    provider text not null check (provider ~ '^[a-z0-9_]{1,31}$'),
    provider_detail text not null check (octet_length(provider_detail) <= 128),
    old_top_row bytea check (octet_length(old_top_row) <= 8192),
    receipt_sha256 bytea check (octet_length(receipt_sha256) = 32),
    created_at timestamptz not null,
    destroyed_at timestamptz,
    purged_at timestamptz,
    check (old_root <> new_root),
    check ((state in ('destroyed', 'purged', 'done')) = (destroyed_at is not null)),
    check ((destroyed_at is null) = (receipt_sha256 is null)),
    check ((state in ('purged', 'done')) = (purged_at is not null))
);
-- A root can only be replaced by one other at a time.
create unique index erase_batch_one on erase_batch ((true)) where state in ('staged', 'rekeyed');

create table erasure (
    id id16 primary key,
    tenant_id bytea not null references tenant (id),
    session_id bytea not null unique references session (id),
    slot integer not null,
    directory_slot integer not null,
    state text not null check (state in ('requested', 'fenced', 'staged', 'rekeyed', 'destroyed', 'purged', 'verified',
                                         'certified', 'blocked_hold', 'needs_approval', 'quarantined')),
    basis text not null check (basis ~ '^[a-z0-9_]{1,32}$'),
    reason_sha256 text check (reason_sha256 ~ '^[0-9a-f]{64}$'),
    requested_by bytea check (octet_length(requested_by) = 16),
    requested_role text not null check (requested_role ~ '^[a-z_]{1,32}$'),
    revocation_seq bigint not null unique check (revocation_seq > 0),
    batch_id bytea references erase_batch (id),
    requested_at timestamptz not null,
    fenced_at timestamptz,
    staged_at timestamptz,
    rekeyed_at timestamptz,
    destroyed_at timestamptz,
    purged_at timestamptz,
    verified_at timestamptz,
    certified_at timestamptz,
    blocked_hold_at timestamptz,
    needs_approval_at timestamptz,
    quarantined_at timestamptz,
    -- What the certificate says; null until collected.
    blocks bigint check (blocks >= 0),
    bytes bigint check (bytes >= 0),
    dram_blocks bigint check (dram_blocks >= 0),
    dram_bytes bigint check (dram_bytes >= 0),
    nvme_blocks bigint check (nvme_blocks >= 0),
    nvme_bytes bigint check (nvme_bytes >= 0),
    block_root bytea check (octet_length(block_root) = 32),
    samples integer check (samples >= 0),
    control_opened integer check (control_opened between 0 and samples),
    opened_after integer check (opened_after between 0 and samples),
    checks integer check (checks between 0 and 7),
    sample_headers bytea check (octet_length(sample_headers) <= 1048576),
    cert_id bytea unique check (octet_length(cert_id) = 16),
    cert_jws bytea check (octet_length(cert_jws) between 1 and 65535),
    previous_sha256 text check (previous_sha256 ~ '^[0-9a-f]{64}$'),
    cert_leaf_index bigint check (cert_leaf_index >= 0),
    bundle bytea check (octet_length(bundle) between 1 and 1048576),
    check (state not in ('staged', 'rekeyed', 'destroyed', 'purged', 'verified', 'certified') or batch_id is not null),
    -- Facts come all together.
    check (num_nonnulls(blocks, bytes, dram_blocks, dram_bytes, nvme_blocks, nvme_bytes, block_root, samples,
                        control_opened, opened_after, checks) in (0, 11)),
    -- Verified means that every check held; anything less is quarantine, never a certificate.
    check (state not in ('verified', 'certified')
           or (block_root is not null and opened_after = 0 and checks = 7)),
    check ((cert_id is null) = (cert_jws is null)),
    check (cert_jws is null or state in ('verified', 'certified', 'quarantined')),
    check ((bundle is null) = (cert_leaf_index is null)),
    check (bundle is null or cert_jws is not null),
    check (state <> 'certified' or (bundle is not null and certified_at is not null and sample_headers is null))
);
create index erasure_by_tenant on erasure (tenant_id, id);
create index erasure_by_batch on erasure (batch_id);
create index erasure_open on erasure (revocation_seq)
    where state in ('requested', 'fenced', 'staged', 'rekeyed', 'destroyed', 'purged', 'verified');
alter table session add foreign key (erasure_id) references erasure (id);

create table audit_log (
    id id16 primary key,
    origin text not null unique check (octet_length(origin) between 1 and 255),
    size bigint not null default 0 check (size >= 0),
    frontier bytea not null default '' check (octet_length(frontier) <= 2048 and octet_length(frontier) % 32 = 0),
    root hash32 not null,
    last_signed_size bigint not null default 0 check (last_signed_size between 0 and size),
    note bytea check (octet_length(note) between 1 and 16384),
    noted_at timestamptz,
    check ((note is null) = (noted_at is null))
);

create table audit_outbox (
    id bigserial primary key,
    log_id id16 not null,
    entry bytea not null check (octet_length(entry) between 1 and 65535),
    ref bytea check (octet_length(ref) between 1 and 64),
    created_at timestamptz not null
);

create table audit_leaf (
    log_id bytea not null references audit_log (id),
    idx bigint not null check (idx >= 0),
    entry bytea not null check (octet_length(entry) between 1 and 65535),
    leaf_hash hash32 not null,
    ref bytea check (octet_length(ref) between 1 and 64),
    primary key (log_id, idx)
);
create index audit_leaf_by_ref on audit_leaf (log_id, ref, idx) where ref is not null;

create table audit_tile (
    log_id bytea not null references audit_log (id),
    level integer not null check (level between 0 and 63),
    n bigint not null check (n >= 0),
    hashes bytea not null check (octet_length(hashes) between 32 and 8192 and octet_length(hashes) % 32 = 0),
    primary key (log_id, level, n)
);
alter table audit_tile alter column hashes set storage external;

-- A place in the log keeps what it holds. The owner can take this away, but not by accident.
create function refuse_change() returns trigger language plpgsql as $$
begin
    raise exception 'rows of % are never changed', tg_table_name using errcode = 'integrity_constraint_violation';
end $$;
create trigger audit_leaf_is_final before update or delete on audit_leaf
    for each row execute function refuse_change();
create trigger audit_leaf_is_kept before truncate on audit_leaf
    for each statement execute function refuse_change();

create table journal_ship (
    instance id16 primary key,
    seq bigint not null check (seq >= 0)
);
