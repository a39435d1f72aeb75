/*
 * Rows of the erasure tree, as sealed bytes. Names the same things as keys/ktree.h without knowing it; the service
 * adapts. Always inside the caller's transaction, which holds kroot FOR SHARE (insert) or FOR UPDATE (update). Thread:
 * the connection's.
 */
#ifndef KV_STORE_KTREE_H
#define KV_STORE_KTREE_H

#include "server/store/pg.h"

#define KV_STORE_NODE_BYTES_MAX 8192

struct kv_store_node_key {
    struct kv_id tree; /* zero: the directory */
    uint32_t level, idx;
};

struct kv_store_node {
    struct kv_id node_id;
    int64_t version;
    uint8_t *sealed; /* from load: owned, kv_free. For insert and update: borrowed for the call */
    size_t sealed_len;
};

KV_RC kv_store_node_load(struct kv_pg *pg, const struct kv_store_node_key *key, struct kv_errinfo *info,
                         struct kv_store_node *ret_node); /* KV_E_MISSING */
KV_RC kv_store_node_insert(struct kv_pg *pg, const struct kv_store_node_key *key, const struct kv_store_node *node,
                           struct kv_errinfo *info); /* KV_E_STALE when there is one. Write. */
/* KV_E_STALE unless exactly the row with `seen_version` was replaced; the new version must be higher. Write. */
KV_RC kv_store_node_update(struct kv_pg *pg, const struct kv_store_node_key *key, int64_t seen_version,
                           const struct kv_store_node *node, struct kv_errinfo *info);
/* Rows in all. */
KV_RC kv_store_node_count(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count);

#endif
