-- An erasure's row changes at each of its steps. An index whose condition speaks of the state got a new entry each time,
-- and with it every other index of the table did; the conditions of these change once, at the end. Room in each page
-- lets the steps stay where the row is.
drop index erasure_open;
drop index erasure_blocked;
create index erasure_open on erasure (revocation_seq) where certified_at is null and quarantined_at is null;
create index erasure_blocked on erasure (hold_id) where blocked_hold_at is not null and unblocked_at is null;
alter table erasure set (fillfactor = 50);
