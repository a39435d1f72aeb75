-- The control plane that people build on: revisions for conditional requests, policies, lifetimes, labels, key rotation,
-- idempotency keys, long-running operations, erasures of more than one session. Adds columns and tables only: an older
-- row is a valid newer one.

-- What pages are ordered by, and what a cursor is signed with: it keeps a client from making up a position, no more, so
-- it is no secret that erasure or access rests on.
alter table cluster add column cursor_key bytea check (octet_length(cursor_key) = 32);

-- A number that every change of what instances hold in memory counts up: policies, tenants, API keys. An instance that
-- saw it unchanged within its lease may use what it holds.
create table change_head (
    one boolean primary key default true check (one),
    seq bigint not null check (seq >= 0)
);
insert into change_head (seq) values (0);

-- --- policies: versions are rows that never change; which one is active is said by the pointer beside them.
create table policy_version (
    id id16 primary key,
    tenant_id bytea references tenant (id), -- null: the platform's
    version bigint not null check (version > 0),
    body text not null check (octet_length(body) between 2 and 65536),
    sha256 hash32 not null,
    created_at timestamptz not null,
    created_by bytea check (octet_length(created_by) = 16),
    created_role text not null check (created_role ~ '^[a-z_]{1,32}$'),
    loosens boolean not null default false
);
create unique index policy_version_of_tenant on policy_version (tenant_id, version) where tenant_id is not null;
create unique index policy_version_of_platform on policy_version (version) where tenant_id is null;
create trigger policy_version_is_final before update or delete on policy_version
    for each row execute function refuse_change();

create table platform (
    one boolean primary key default true check (one),
    policy_id bytea references policy_version (id),
    rev bigint not null default 1 check (rev > 0)
);
insert into platform (one) values (true);

-- --- tenants
alter table tenant drop constraint tenant_state_check;
alter table tenant add constraint tenant_state_check
    check (state in ('active', 'suspended', 'deleting', 'erasing', 'erased'));
alter table tenant
    add column rev bigint not null default 1 check (rev > 0),
    add column region text check (region ~ '^[a-z0-9-]{1,63}$'),
    add column labels jsonb not null default '{}' check (jsonb_typeof(labels) = 'object'),
    add column updated_at timestamptz,
    add column suspended_at timestamptz,
    add column suspend_reason_sha256 text check (suspend_reason_sha256 ~ '^[0-9a-f]{64}$'),
    add column delete_at timestamptz,          -- end of the grace time
    add column deleted_by bytea check (octet_length(deleted_by) = 16),
    add column policy_id bytea references policy_version (id),
    add column system_slot integer check (system_slot between 0 and 262143), -- its secret makes the lookup key of external ids
    add constraint tenant_deleting_has_time check ((state = 'deleting') = (delete_at is not null));
create index tenant_by_time on tenant (created_at, id);
create index tenant_to_delete on tenant (delete_at) where delete_at is not null;

-- --- API keys
alter table api_key
    add column rev bigint not null default 1 check (rev > 0),
    add column cidrs text[] not null default '{}' check (cardinality(cidrs) <= 16),
    add column last_used_at timestamptz,       -- to the minute
    add column rotated_at timestamptz,
    add column old_secret_sha256 bytea check (octet_length(old_secret_sha256) = 32),
    add column old_secret_until timestamptz,
    add constraint api_key_old_secret_has_end check ((old_secret_sha256 is null) = (old_secret_until is null));
create index api_key_by_tenant_time on api_key (tenant_id, created_at, id);
create index api_key_by_expiry on api_key (expires_at) where revoked_at is null;

-- --- sessions
alter table session
    add column rev bigint not null default 1 check (rev > 0),
    add column class text not null default 'default' check (class ~ '^[a-z0-9_-]{1,32}$'),
    add column region text check (region ~ '^[a-z0-9-]{1,63}$'),
    add column external_hmac bytea check (octet_length(external_hmac) = 32),     -- keyed; null once erasing
    add column external_sealed bytea check (octet_length(external_sealed) <= 512), -- under the session's K_meta
    add column labels jsonb not null default '{}' check (jsonb_typeof(labels) = 'object'),
    add column updated_at timestamptz,
    add column last_used_at timestamptz,       -- to the minute, from transfers and touches
    add column expires_at timestamptz,         -- by its whole lifetime
    add column idle_seconds bigint check (idle_seconds > 0), -- erased when not used for so long
    add column idle_at timestamptz,            -- when that is, as known; moved on use
    add column pinned_until timestamptz;
-- One live session an external id; an erased one gives it free.
create unique index session_by_external on session (tenant_id, external_hmac) where external_hmac is not null;
create index session_by_tenant_time on session (tenant_id, created_at, id);
create index session_by_labels on session using gin (labels jsonb_path_ops);
create index session_to_expire on session (least(expires_at, idle_at)) where state = 'active' and (expires_at is not null or idle_at is not null);

-- --- erasures: one row a session as before; a group is one request that matched several.
create table erasure_group (
    id id16 primary key,
    tenant_id bytea not null references tenant (id),
    scope text not null check (scope in ('label', 'idle', 'tenant')),
    label jsonb check (jsonb_typeof(label) = 'object'),
    idle_before timestamptz,
    cutoff timestamptz not null,               -- sessions made after it are not meant
    basis text not null check (basis ~ '^[a-z0-9_]{1,32}$'),
    reason_sha256 text check (reason_sha256 ~ '^[0-9a-f]{64}$'),
    reference_sha256 text check (reference_sha256 ~ '^[0-9a-f]{64}$'),
    requested_by bytea check (octet_length(requested_by) = 16),
    requested_role text not null check (requested_role ~ '^[a-z_]{1,32}$'),
    state text not null check (state in ('expanding', 'running', 'certified', 'quarantined')),
    sessions bigint not null default 0 check (sessions >= 0),
    created_at timestamptz not null,
    ended_at timestamptz,
    check ((scope = 'label') = (label is not null)),
    check ((scope = 'idle') = (idle_before is not null)),
    check ((state in ('certified', 'quarantined')) = (ended_at is not null))
);
create index erasure_group_by_tenant_time on erasure_group (tenant_id, created_at, id);
create index erasure_group_open on erasure_group (created_at) where ended_at is null;
alter table erasure
    add column group_id bytea references erasure_group (id),
    add column reference_sha256 text check (reference_sha256 ~ '^[0-9a-f]{64}$');
create index erasure_by_group on erasure (group_id, id) where group_id is not null;
create index erasure_by_tenant_time on erasure (tenant_id, requested_at, id);
create index erasure_certified_by_tenant on erasure (tenant_id, certified_at, id) where certified_at is not null;
create index erasure_by_cert on erasure (cert_id) where cert_id is not null;

-- --- idempotency keys: the row is written in the transaction of the effect, with the answer.
create table idempotency (
    principal id16 not null,
    scope hash32 not null,                     -- method and path template
    key text not null check (key ~ '^[!-~]{1,255}$'),
    fingerprint hash32 not null,               -- path, query, canonical body
    status integer not null check (status between 200 and 299),
    location text check (octet_length(location) <= 512),
    etag text check (octet_length(etag) <= 128),
    content_type text check (octet_length(content_type) <= 128),
    body bytea check (octet_length(body) <= 1048576), -- null: it held a secret
    request_id text not null check (octet_length(request_id) <= 64),
    created_at timestamptz not null,
    expires_at timestamptz,                    -- null: for ever
    primary key (principal, scope, key)
);
create index idempotency_to_expire on idempotency (expires_at) where expires_at is not null;

-- --- long-running operations
create table operation (
    id id16 primary key,
    kind text not null check (kind ~ '^[a-z_.]{1,32}$'),
    tenant_id bytea references tenant (id),    -- null: the operator's
    created_by bytea check (octet_length(created_by) = 16),
    state text not null default 'queued' check (state in ('queued', 'running', 'succeeded', 'failed', 'canceled')),
    phase text not null default '' check (octet_length(phase) <= 64),
    done_units bigint not null default 0 check (done_units >= 0),
    total_units bigint check (total_units >= 0),
    unit text not null default '' check (octet_length(unit) <= 32),
    params text not null default '{}' check (octet_length(params) <= 16384),
    position text check (octet_length(position) <= 8192), -- where a run that was cut goes on
    response text check (octet_length(response) <= 1048576),
    error_code text check (error_code ~ '^[a-z0-9_]{1,64}$'),
    error_text text check (octet_length(error_text) <= 512),
    cancel_requested_at timestamptz,
    rev bigint not null default 1 check (rev > 0),
    created_at timestamptz not null,
    started_at timestamptz,
    ended_at timestamptz,
    expires_at timestamptz,
    check ((state in ('succeeded', 'failed', 'canceled')) = (ended_at is not null)),
    check ((state = 'failed') = (error_code is not null))
);
create index operation_by_tenant_time on operation (tenant_id, created_at, id);
create index operation_open on operation (created_at) where ended_at is null;
create index operation_to_expire on operation (expires_at) where expires_at is not null;

-- --- the log as people read it: leaves by time, filtered.
alter table audit_leaf
    add column at timestamptz,
    add column op text,
    add column actor bytea check (octet_length(actor) = 16),
    add column session_id bytea check (octet_length(session_id) = 16),
    add column outcome text;
create index audit_leaf_by_session on audit_leaf (session_id, idx) where session_id is not null;
