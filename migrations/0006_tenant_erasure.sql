-- Erasing a tenant in one step: one row of `erasure` for all of its sessions, and a fresh tree for those that come after
-- them. No row of a session is touched by it: slots are given out in order, so a number says which sessions are meant.

alter table tenant
    add column tree_id bytea check (octet_length(tree_id) = 16), -- of the key tree it has now; null: the tenant's own id
    add column first_slot integer not null default 0 check (first_slot between 0 and 262144); -- slots before it went with earlier trees
alter table tenant add constraint tenant_slots_in_order check (first_slot <= next_slot);

alter table erasure alter column session_id drop not null;
alter table erasure
    add column scope text not null default 'session' check (scope in ('session', 'tenant')),
    add column tree_id bytea check (octet_length(tree_id) = 16), -- null: the tenant's own id
    -- Of a tenant: sessions with slots from first_slot up to, not with, slot, that had no erasure of their own.
    add column first_slot integer check (first_slot between 0 and 262144),
    add column sessions bigint not null default 1 check (sessions >= 0),
    add column sessions_root bytea check (octet_length(sessions_root) = 32), -- over their ids
    add column settled_at timestamptz,         -- the rows of its sessions say themselves that they are erased
    add constraint erasure_scope_has_parts check (
        case scope when 'session' then session_id is not null and first_slot is null and sessions = 1
                   else session_id is null and first_slot <= slot and group_id is null end),
    -- What a certificate of a tenant counts is written down before it is verified.
    add constraint erasure_tenant_is_counted check (
        scope = 'session' or state not in ('verified', 'certified') or sessions_root is not null);
create index erasure_of_tenant on erasure (tenant_id, slot) where scope = 'tenant';
create index erasure_to_settle on erasure (certified_at) where scope = 'tenant' and settled_at is null;

-- The sessions of a tenant share one number and one erasure.
alter table session drop constraint session_revoked_seq_key, drop constraint session_erasure_id_key;
create index session_by_erasure on session (erasure_id) where erasure_id is not null;
