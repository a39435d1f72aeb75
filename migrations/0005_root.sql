-- A root of erasure that is gone for good takes its sessions along. They are lost: not erased, and no certificate says so.

alter table session drop constraint session_state_check, drop constraint session_check, drop constraint session_check1;
alter table session
    add constraint session_state_check check (state in ('active', 'erasing', 'erased', 'lost')),
    -- As before; a lost one may have been active, or on its way to be erased.
    add constraint session_revoked_unless_active check (state = 'lost' or (state = 'active') = (revoked_seq is null)),
    add constraint session_erasure_unless_active check (state = 'lost' or (state = 'active') = (erasure_id is null));
