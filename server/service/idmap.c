/* See idmap.h. Ids are UUIDv7 or random, so their last eight bytes are a good hash already. */
#include "server/service/idmap.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <string.h>

void kv_idmap_init(struct kv_idmap *map)
{
    *map = (struct kv_idmap){0};
}

void kv_idmap_done(struct kv_idmap *map)
{
    kv_free(map->entries);
    *map = (struct kv_idmap){0};
}

static size_t home(const struct kv_idmap *map, const struct kv_id *id)
{
    uint64_t hash = 0;
    memcpy(&hash, id->b + 8, sizeof hash);
    hash ^= hash >> 32;
    return (size_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (map->size - 1);
}

/* The entry of `id`, or the free one where it would go. There is always a free one: the map is at most three quarters
 * full. */
static struct kv_idmap_entry *probe(const struct kv_idmap *map, const struct kv_id *id)
{
    size_t at = home(map, id);
    while (map->entries[at].value != NULL && !kv_id_equal(&map->entries[at].id, id)) {
        at = (at + 1) & (map->size - 1);
    }
    return &map->entries[at];
}

void *kv_idmap_get(const struct kv_idmap *map, const struct kv_id *id)
{
    return map->size == 0 ? NULL : probe(map, id)->value;
}

static KV_RC grow(struct kv_idmap *map)
{
    struct kv_idmap larger = {.size = map->size == 0 ? 16 : map->size * 2, .count = map->count};
    larger.entries = kv_alloc_array(larger.size, sizeof *larger.entries);
    if (larger.entries == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < map->size; i++) {
        if (map->entries[i].value != NULL) {
            *probe(&larger, &map->entries[i].id) = map->entries[i];
        }
    }
    kv_free(map->entries);
    *map = larger;
    return KV_OK;
}

KV_RC kv_idmap_put(struct kv_idmap *map, const struct kv_id *id, void *value)
{
    if ((map->count + 1) * 4 > map->size * 3) {
        KV_TRY(grow(map));
    }
    struct kv_idmap_entry *entry = probe(map, id);
    map->count += entry->value == NULL ? 1 : 0;
    *entry = (struct kv_idmap_entry){.id = *id, .value = value};
    return KV_OK;
}

void *kv_idmap_take(struct kv_idmap *map, const struct kv_id *id)
{
    if (map->size == 0) {
        return NULL;
    }
    struct kv_idmap_entry *entry = probe(map, id);
    void *value = entry->value;
    if (value == NULL) {
        return NULL;
    }
    map->count--;
    /* Close the gap: later entries of the same run move up, so that no probe stops early. */
    size_t hole = (size_t)(entry - map->entries);
    for (size_t at = (hole + 1) & (map->size - 1); map->entries[at].value != NULL; at = (at + 1) & (map->size - 1)) {
        size_t wanted = home(map, &map->entries[at].id);
        if (((at - wanted) & (map->size - 1)) >= ((at - hole) & (map->size - 1))) {
            map->entries[hole] = map->entries[at];
            hole = at;
        }
    }
    map->entries[hole].value = NULL;
    return value;
}

void *kv_idmap_next(const struct kv_idmap *map, size_t *position)
{
    while (*position < map->size) {
        void *value = map->entries[(*position)++].value;
        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}
