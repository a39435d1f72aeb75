/*
 * A growing hash map from id to pointer, for the registries of the service. The pointers stay the caller's. Not
 * thread-safe: each registry has its lock.
 */
#ifndef KV_SERVICE_IDMAP_H
#define KV_SERVICE_IDMAP_H

#include "dataplane/base/err.h"

struct kv_idmap_entry {
    struct kv_id id;
    void *value; /* NULL: free */
};

struct kv_idmap {
    struct kv_idmap_entry *entries; /* owned; open addressing, linear probing, a power of two of them */
    size_t size, count;
};

void kv_idmap_init(struct kv_idmap *map);
void kv_idmap_done(struct kv_idmap *map);
void *kv_idmap_get(const struct kv_idmap *map, const struct kv_id *id);        /* NULL: not there */
KV_RC kv_idmap_put(struct kv_idmap *map, const struct kv_id *id, void *value); /* replaces */
void *kv_idmap_take(struct kv_idmap *map, const struct kv_id *id);             /* removes and returns */
/* Walks: start with *position = 0; NULL at the end. Removing the one just returned ends the walk: start again. */
void *kv_idmap_next(const struct kv_idmap *map, size_t *position);

#endif
