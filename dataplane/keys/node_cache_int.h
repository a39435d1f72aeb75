/*
 * Opened nodes, at most NODE_CACHE_MAX, least recently used out first, in one locked allocation. An entry answers only
 * for the row with the very node id that it was opened from. Not locked: ktree.c's mutex covers it.
 */
#ifndef KV_KEYS_NODE_CACHE_INT_H
#define KV_KEYS_NODE_CACHE_INT_H

#include "dataplane/keys/node_int.h"

#define NODE_CACHE_MAX 64u

struct node_cache_entry {
    bool used;
    struct kv_node_key key;
    struct kv_id node_id;
    uint64_t used_at; /* of the cache's own counter */
};

struct node_cache {
    struct node_cache_entry entries[NODE_CACHE_MAX];
    uint8_t *plains; /* owned, locked: NODE_CACHE_MAX plaintexts */
    uint64_t tick;
};

KV_RC node_cache_init(struct node_cache *cache);
void node_cache_done(struct node_cache *cache);
/* Borrowed until the next call; NULL when not there. An entry of the same key with another node id is wiped. */
const uint8_t *node_cache_get(struct node_cache *cache, const struct kv_node_key *key, const struct kv_id *node_id);
void node_cache_put(struct node_cache *cache, const struct kv_node_key *key, const struct kv_id *node_id,
                    const uint8_t *plain);
void node_cache_wipe(struct node_cache *cache);
size_t node_cache_count(const struct node_cache *cache);

#endif
