/*
 * A set of ids that only grows: scopes that were dropped for good. It must never forget one while the process lives.
 */
#include "dataplane/base/mem.h"
#include "dataplane/keys/keyring_int.h"

#include <string.h>

#define FIRST_SLOTS 64u

size_t id_hash(const struct kv_id *id)
{
    uint64_t low, high;
    memcpy(&high, id->b, 8);
    memcpy(&low, id->b + 8, 8);
    uint64_t h = (high ^ (low * UINT64_C(0x9e3779b97f4a7c15)));
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    h ^= h >> 29;
    return (size_t)h;
}

void id_set_init(struct id_set *set, size_t count_max)
{
    *set = (struct id_set){.count_max = count_max};
}

void id_set_done(struct id_set *set)
{
    kv_free(set->slots);
    *set = (struct id_set){0};
}

/* The slot that holds `id` or the empty one where it would go. At most 3 of 4 slots are full, so the walk ends. */
static struct kv_id *slot_of(struct kv_id *slots, size_t mask, const struct kv_id *id)
{
    size_t i = id_hash(id) & mask;
    while (!kv_id_is_zero(&slots[i]) && !kv_id_equal(&slots[i], id)) {
        i = (i + 1) & mask;
    }
    return &slots[i];
}

bool id_set_has(const struct id_set *set, const struct kv_id *id)
{
    return set->slots != NULL && !kv_id_is_zero(slot_of(set->slots, set->mask, id));
}

static KV_RC grow(struct id_set *set)
{
    size_t size = set->slots == NULL ? FIRST_SLOTS : (set->mask + 1) * 2;
    struct kv_id *slots = kv_alloc_array(size, sizeof(*slots));
    if (slots == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; set->slots != NULL && i <= set->mask; i++) {
        if (!kv_id_is_zero(&set->slots[i])) {
            *slot_of(slots, size - 1, &set->slots[i]) = set->slots[i];
        }
    }
    kv_free(set->slots);
    set->slots = slots;
    set->mask = size - 1;
    return KV_OK;
}

KV_RC id_set_add(struct id_set *set, const struct kv_id *id)
{
    if (id_set_has(set, id)) {
        return KV_OK;
    }
    if (set->count >= set->count_max) {
        return KV_E_LIMIT;
    }
    if (set->slots == NULL || (set->count + 1) * 4 > (set->mask + 1) * 3) {
        KV_TRY(grow(set));
    }
    *slot_of(set->slots, set->mask, id) = *id;
    set->count++;
    return KV_OK;
}
