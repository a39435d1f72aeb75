-- What tenants moved, by hours: summed up from transfer records in the transaction that puts them into the outbox, so
-- each counts once whatever crashes. Bytes are plaintext.

create table tenant_usage_hour (
    tenant_id id16 not null,
    hour timestamptz not null check (extract(epoch from hour)::bigint % 3600 = 0),
    offloaded_blocks bigint not null check (offloaded_blocks >= 0),
    offloaded_bytes bigint not null check (offloaded_bytes >= 0),
    restored_blocks bigint not null check (restored_blocks >= 0),
    restored_bytes bigint not null check (restored_bytes >= 0),
    primary key (tenant_id, hour)
);
create index tenant_usage_hour_by_age on tenant_usage_hour (hour);

-- What was moved before this was there is not in it.
alter table cluster add column usage_since timestamptz not null default now();
