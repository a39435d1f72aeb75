/*
 * The cache of opened nodes. It must never answer for a row that it did not see opened.
 */
#include "dataplane/keys/node_cache_int.h"

#include <string.h>

KV_RC node_cache_init(struct node_cache *cache)
{
    void *plains = NULL;
    KV_TRY(kv_locked_alloc(NODE_CACHE_MAX * KV_NODE_PLAINTEXT_BYTES, &plains));
    *cache = (struct node_cache){.plains = plains};
    return KV_OK;
}

void node_cache_done(struct node_cache *cache)
{
    kv_locked_free(cache->plains, NODE_CACHE_MAX * KV_NODE_PLAINTEXT_BYTES);
    *cache = (struct node_cache){0};
}

static uint8_t *plain_of(struct node_cache *cache, const struct node_cache_entry *entry)
{
    return cache->plains + (size_t)(entry - cache->entries) * KV_NODE_PLAINTEXT_BYTES;
}

static void forget(struct node_cache *cache, struct node_cache_entry *entry)
{
    kv_wipe(plain_of(cache, entry), KV_NODE_PLAINTEXT_BYTES);
    *entry = (struct node_cache_entry){0};
}

static struct node_cache_entry *find(struct node_cache *cache, const struct kv_node_key *key)
{
    for (size_t i = 0; i < NODE_CACHE_MAX; i++) {
        if (cache->entries[i].used && tree_key_equal(&cache->entries[i].key, key)) {
            return &cache->entries[i];
        }
    }
    return NULL;
}

const uint8_t *node_cache_get(struct node_cache *cache, const struct kv_node_key *key, const struct kv_id *node_id)
{
    struct node_cache_entry *entry = find(cache, key);
    if (entry == NULL) {
        return NULL;
    }
    if (!kv_id_equal(&entry->node_id, node_id)) {
        forget(cache, entry);
        return NULL;
    }
    entry->used_at = ++cache->tick;
    return plain_of(cache, entry);
}

/* The entry of the same key, else a free one, else the one that was used longest ago. */
static struct node_cache_entry *place_for(struct node_cache *cache, const struct kv_node_key *key)
{
    struct node_cache_entry *same = find(cache, key);
    if (same != NULL) {
        return same;
    }
    struct node_cache_entry *oldest = &cache->entries[0];
    for (size_t i = 0; i < NODE_CACHE_MAX; i++) {
        if (!cache->entries[i].used) {
            return &cache->entries[i];
        }
        if (cache->entries[i].used_at < oldest->used_at) {
            oldest = &cache->entries[i];
        }
    }
    return oldest;
}

void node_cache_put(struct node_cache *cache, const struct kv_node_key *key, const struct kv_id *node_id,
                    const uint8_t *plain)
{
    struct node_cache_entry *entry = place_for(cache, key);
    memcpy(plain_of(cache, entry), plain, KV_NODE_PLAINTEXT_BYTES);
    *entry = (struct node_cache_entry){.used = true, .key = *key, .node_id = *node_id, .used_at = ++cache->tick};
}

void node_cache_wipe(struct node_cache *cache)
{
    kv_wipe(cache->plains, NODE_CACHE_MAX * KV_NODE_PLAINTEXT_BYTES);
    memset(cache->entries, 0, sizeof(cache->entries));
}

size_t node_cache_count(const struct node_cache *cache)
{
    size_t count = 0;
    for (size_t i = 0; i < NODE_CACHE_MAX; i++) {
        count += cache->entries[i].used ? 1 : 0;
    }
    return count;
}
