/*
 * What tenants moved, by hours: one row a tenant and hour, summed up from transfer records. Thread: whose connection it
 * is.
 */
#ifndef KV_STORE_USAGE_H
#define KV_STORE_USAGE_H

#include "server/store/pg.h"

struct kv_store_moved {
    uint64_t offloaded_blocks, offloaded_bytes, restored_blocks, restored_bytes;
};

struct kv_store_usage_hour {
    struct kv_id tenant;
    uint64_t hour_us; /* its begin */
    struct kv_store_moved moved;
};

/* In a transaction; each pair of tenant and hour once. */
KV_RC kv_store_usage_add(struct kv_pg *pg, const struct kv_store_usage_hour *hours, size_t count,
                         struct kv_errinfo *info);
/* The hours that begin at `from_us` or later. */
KV_RC kv_store_usage_sum(struct kv_pg *pg, const struct kv_id *tenant, uint64_t from_us, struct kv_errinfo *info,
                         struct kv_store_moved *ret_moved);
/* When counting began. */
KV_RC kv_store_usage_since(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_since_us);
/* Takes away at most `max` of those before `before_us`, in a transaction. */
KV_RC kv_store_usage_expire(struct kv_pg *pg, uint64_t before_us, size_t max, struct kv_errinfo *info,
                            uint64_t *ret_count);

#endif
