-- Legal holds: what one covers is not erased while it lasts. An erasure that is asked for meanwhile is kept in the state
-- blocked_hold; its session is refused as with any other, and the eraser takes it on when no hold covers it any more.

create table hold (
    id id16 primary key,
    tenant_id bytea not null references tenant (id),
    scope text not null check (scope in ('session', 'label', 'tenant')),
    session_id bytea references session (id),
    label jsonb check (jsonb_typeof(label) = 'object'), -- its value null once the hold has ended
    ground text check (ground in ('legal_claims', 'legal_obligation', 'public_interest')),
    reason_sha256 text not null check (reason_sha256 ~ '^[0-9a-f]{64}$'),
    reference_sha256 text check (reference_sha256 ~ '^[0-9a-f]{64}$'),
    rev bigint not null default 1 check (rev > 0),
    created_at timestamptz not null,
    created_by bytea check (octet_length(created_by) = 16),
    created_role text not null check (created_role ~ '^[a-z_]{1,32}$'),
    expires_at timestamptz not null,
    released_at timestamptz,                   -- by somebody; else it ended with its time
    released_by bytea check (octet_length(released_by) = 16),
    ended_at timestamptz,                      -- released, or seen to be past its time
    check ((scope = 'session') = (session_id is not null)),
    check ((scope = 'label') = (label is not null)),
    check (expires_at > created_at),
    check (released_at is null or ended_at is not null)
);
create index hold_by_tenant_time on hold (tenant_id, created_at, id);
create index hold_open on hold (tenant_id) where ended_at is null;
create index hold_to_end on hold (expires_at) where ended_at is null;

alter table erasure
    add column hold_id bytea references hold (id), -- one that covered the session, the last to be seen
    add column unblocked_at timestamptz,       -- when none covered it any more
    add constraint erasure_blocked_by_hold check (state <> 'blocked_hold' or hold_id is not null);
create index erasure_blocked on erasure (hold_id) where state = 'blocked_hold';
