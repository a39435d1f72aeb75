-- Approvals: what a policy lets one person only propose is done when a second one approves it. A row names the request,
-- what it was decided on, and how it ended; it is used once.

create table approval (
    id id16 primary key,
    tenant_id bytea not null references tenant (id),
    action text not null check (action in ('tenant.delete', 'tenant.delete_now', 'hold.release')),
    target id16 not null,
    target_rev bigint not null check (target_rev > 0),     -- as it was when it was proposed
    platform_version bigint not null check (platform_version >= 0), -- of the policies, likewise
    tenant_version bigint not null check (tenant_version >= 0),
    request text not null check (octet_length(request) between 2 and 1024),
    request_sha256 hash32 not null,
    state text not null default 'pending' check (state in ('pending', 'approved', 'rejected')),
    rev bigint not null default 1 check (rev > 0),
    proposed_by id16 not null,
    proposed_role text not null check (proposed_role ~ '^[a-z_]{1,32}$'),
    decided_by bytea check (octet_length(decided_by) = 16),
    created_at timestamptz not null,
    expires_at timestamptz not null check (expires_at > created_at),
    decided_at timestamptz,
    check ((state = 'pending') = (decided_at is null)),
    check ((state = 'pending') = (decided_by is null)),
    -- The one thing that a second person is for.
    check (state <> 'approved' or decided_by <> proposed_by)
);
create index approval_by_tenant_time on approval (tenant_id, created_at, id);
create index approval_by_time on approval (created_at, id);
create index approval_pending on approval (tenant_id, expires_at) where state = 'pending';
