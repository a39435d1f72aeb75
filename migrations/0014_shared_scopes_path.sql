-- What a scope's end rests on is found in this schema, whatever the search path of whoever changes a session.

alter function scope_is_due(bytea) set search_path from current;
alter function session_scope_is_seen_to() set search_path from current;
