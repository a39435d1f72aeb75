-- Scopes: what several sessions of a tenant share. A scope is a row of `session`, because all that makes a session
-- erasable holds for it, too: a slot of its own, a key, a number of revocation, an erasure, a certificate. Its client's
-- name stands in external_hmac and external_sealed, as a session's does.

alter table session
    add column kind text not null default 'session' check (kind in ('session', 'scope')),
    add column scope_id bytea references session (id), -- which it shares
    add column takes_scope boolean not null default false, -- and which goes with it, whoever else shares it
    add constraint session_shares_no_further check (kind = 'session' or scope_id is null);
create index session_by_scope on session (scope_id) where scope_id is not null;
create index session_scopes on session (id) where kind = 'scope' and state = 'active';

-- A scope is to be erased when a session takes it along, or no session keeps it any more. An erasure that is blocked
-- takes nothing along, and its session keeps what it shares.
create function scope_is_due(scope bytea) returns boolean language sql stable as $$
    select exists (select from session r left join erasure e on e.id = r.erasure_id
                   where r.scope_id = s.id and r.takes_scope and r.state <> 'active'
                         and coalesce(e.state not in ('blocked_hold', 'needs_approval'), true))
           or not exists (select from session r left join erasure e on e.id = r.erasure_id
                          where r.scope_id = s.id
                                and (r.state = 'active' or e.state in ('blocked_hold', 'needs_approval')))
    from session s join tenant t on t.id = s.tenant_id
    where s.id = scope and s.kind = 'scope' and s.state = 'active' and s.slot >= t.first_slot
$$;

-- Whoever begins to erase sessions, by whatever statement, sees to their scopes: else the transaction does not commit, and
-- no key is left behind unseen. Requests come one after the other, by the lock on revocation_head.
create function session_scope_is_seen_to() returns trigger language plpgsql as $$
begin
    if scope_is_due(new.scope_id) then
        raise exception 'a shared scope would outlive the sessions that keep it'
            using errcode = 'integrity_constraint_violation';
    end if;
    return null;
end $$;
create constraint trigger session_scope_is_seen_to after update on session deferrable initially deferred
    for each row when (new.state = 'erasing' and old.state = 'active' and new.scope_id is not null)
    execute function session_scope_is_seen_to();
