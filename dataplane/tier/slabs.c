/*
 * The slot allocator of the dram and nvme tiers; see slabs_int.h. One bit a slot (sized for the smallest slot), one
 * list of slabs with room per class. It must never hand out a slot twice: give and claim assert or refuse what does not
 * fit the bits.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/slabs_int.h"

#define NONE UINT32_MAX

struct slab {
    uint64_t slot_bytes; /* 0: in the pool */
    uint32_t total, used;
    uint32_t hint;       /* word of the bitmap to look at first */
    uint32_t prev, next; /* slabs of one class that have room; or, in the pool, `next` alone */
    bool listed;
};

struct kv_slabs {
    uint32_t count;
    uint64_t slab_bytes;
    uint32_t words; /* of the bitmap, a slab */
    uint32_t pool;  /* first free slab */
    uint32_t pool_count;
    uint64_t used_bytes, slots_used;
    struct slab *slabs;
    uint64_t *bits;
    /* Slabs with room, in one list for each hash of the slot size: sizes that collide share a list and are told apart
     * by walking it. */
    uint32_t lists[64];
};

static uint32_t *list_of(struct kv_slabs *s, uint64_t slot_bytes)
{
    uint64_t units = slot_bytes / KV_SLOT_UNIT_BYTES;
    return &s->lists[(units * UINT64_C(0x9e3779b97f4a7c15)) >> 58];
}

static void list_add(struct kv_slabs *s, uint32_t index)
{
    struct slab *slab = &s->slabs[index];
    uint32_t *head = list_of(s, slab->slot_bytes);
    KV_ASSERT(!slab->listed);
    slab->prev = NONE;
    slab->next = *head;
    if (*head != NONE) {
        s->slabs[*head].prev = index;
    }
    *head = index;
    slab->listed = true;
}

static void list_remove(struct kv_slabs *s, uint32_t index)
{
    struct slab *slab = &s->slabs[index];
    KV_ASSERT(slab->listed);
    if (slab->prev == NONE) {
        *list_of(s, slab->slot_bytes) = slab->next;
    } else {
        s->slabs[slab->prev].next = slab->next;
    }
    if (slab->next != NONE) {
        s->slabs[slab->next].prev = slab->prev;
    }
    slab->listed = false;
}

static uint64_t *bits_of(const struct kv_slabs *s, uint32_t index)
{
    return &s->bits[(size_t)index * s->words];
}

KV_RC kv_slabs_new(uint32_t slab_count, uint64_t slab_bytes, struct kv_slabs **ret_slabs)
{
    uint64_t words = (slab_bytes / KV_SLOT_UNIT_BYTES + 63) / 64;
    if (slab_count == 0 || slab_count > UINT16_MAX || slab_bytes == 0 || slab_bytes % KV_SLOT_UNIT_BYTES != 0 ||
        words > UINT32_MAX / 64) {
        return KV_E_LIMIT;
    }
    size_t total_words;
    struct kv_slabs *s = kv_alloc(sizeof(*s));
    if (s == NULL || !kv_mul_size(slab_count, (size_t)words, &total_words)) {
        kv_free(s);
        return KV_E_NO_MEMORY;
    }
    s->count = slab_count;
    s->slab_bytes = slab_bytes;
    s->words = (uint32_t)words;
    s->slabs = kv_alloc_array(slab_count, sizeof(*s->slabs));
    s->bits = kv_alloc_array(total_words, sizeof(*s->bits));
    if (s->slabs == NULL || s->bits == NULL) {
        kv_slabs_free(s);
        return KV_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < sizeof(s->lists) / sizeof(s->lists[0]); i++) {
        s->lists[i] = NONE;
    }
    for (uint32_t i = 0; i < slab_count; i++) {
        s->slabs[i].next = i + 1 < slab_count ? i + 1 : NONE;
    }
    s->pool = 0;
    s->pool_count = slab_count;
    *ret_slabs = s;
    return KV_OK;
}

void kv_slabs_free(struct kv_slabs *slabs)
{
    if (slabs != NULL) {
        kv_free(slabs->slabs);
        kv_free(slabs->bits);
        kv_free(slabs);
    }
}

/* The class of a slab begins. It is in no list yet. */
static void cut(struct kv_slabs *s, uint32_t index, uint64_t slot_bytes)
{
    struct slab *slab = &s->slabs[index];
    KV_ASSERT(slab->slot_bytes == 0 && slab->used == 0);
    slab->slot_bytes = slot_bytes;
    slab->total = (uint32_t)(s->slab_bytes / slot_bytes);
    slab->hint = 0;
    s->pool_count--;
    list_add(s, index);
}

static void uncut(struct kv_slabs *s, uint32_t index)
{
    struct slab *slab = &s->slabs[index];
    list_remove(s, index);
    slab->slot_bytes = 0;
    slab->total = 0;
    slab->next = s->pool;
    s->pool = index;
    s->pool_count++;
}

static uint32_t fullest_with_room(struct kv_slabs *s, uint64_t slot_bytes)
{
    uint32_t best = NONE;
    for (uint32_t i = *list_of(s, slot_bytes); i != NONE; i = s->slabs[i].next) {
        if (s->slabs[i].slot_bytes == slot_bytes && (best == NONE || s->slabs[i].used > s->slabs[best].used)) {
            best = i;
        }
    }
    return best;
}

static uint32_t find_free_slot(const struct kv_slabs *s, uint32_t index)
{
    const uint64_t *bits = bits_of(s, index);
    const struct slab *slab = &s->slabs[index];
    uint32_t words = (slab->total + 63) / 64;
    uint32_t slot = slab->total;
    for (uint32_t i = 0; i < words && slot >= slab->total; i++) {
        uint32_t word = (slab->hint + i) % words;
        slot = bits[word] == UINT64_MAX ? slab->total : word * 64 + (uint32_t)__builtin_ctzll(~bits[word]);
    }
    KV_ASSERT(slot < slab->total); /* a slab in a list has room */
    return slot;
}

static void mark(struct kv_slabs *s, uint32_t index, uint32_t slot)
{
    struct slab *slab = &s->slabs[index];
    uint64_t *word = &bits_of(s, index)[slot / 64];
    KV_ASSERT(slot < slab->total && (*word >> (slot % 64) & 1) == 0);
    *word |= UINT64_C(1) << (slot % 64);
    slab->hint = slot / 64;
    slab->used++;
    s->slots_used++;
    s->used_bytes += slab->slot_bytes;
    if (slab->used == slab->total) {
        list_remove(s, index);
    }
}

static uint32_t pop_pool(struct kv_slabs *s)
{
    uint32_t index = s->pool;
    if (index != NONE) {
        s->pool = s->slabs[index].next;
    }
    return index;
}

KV_RC kv_slabs_take(struct kv_slabs *slabs, uint64_t bytes, uint64_t *ret_offset)
{
    if (bytes == 0 || bytes > slabs->slab_bytes || bytes % KV_SLOT_UNIT_BYTES != 0) {
        return KV_E_LIMIT;
    }
    uint32_t index = fullest_with_room(slabs, bytes);
    if (index == NONE) {
        index = pop_pool(slabs);
        if (index == NONE) {
            return KV_E_NO_SPACE;
        }
        cut(slabs, index, bytes);
    }
    uint32_t slot = find_free_slot(slabs, index);
    mark(slabs, index, slot);
    *ret_offset = index * slabs->slab_bytes + slot * bytes;
    return KV_OK;
}

/* Out of the middle of the pool; at start only, so the walk does not matter. */
static void leave_pool(struct kv_slabs *s, uint32_t index)
{
    uint32_t *link = &s->pool;
    while (*link != index) {
        KV_ASSERT(*link != NONE);
        link = &s->slabs[*link].next;
    }
    *link = s->slabs[index].next;
}

KV_RC kv_slabs_claim(struct kv_slabs *slabs, uint64_t offset, uint64_t bytes)
{
    uint64_t index = offset / slabs->slab_bytes, inside = offset % slabs->slab_bytes;
    if (index >= slabs->count || bytes == 0 || bytes > slabs->slab_bytes || bytes % KV_SLOT_UNIT_BYTES != 0 ||
        inside % bytes != 0 || slabs->slab_bytes - inside < bytes) {
        return KV_E_CORRUPT;
    }
    struct slab *slab = &slabs->slabs[index];
    uint32_t slot = (uint32_t)(inside / bytes);
    if (slab->slot_bytes == 0) {
        leave_pool(slabs, (uint32_t)index);
        cut(slabs, (uint32_t)index, bytes);
    }
    if (slab->slot_bytes != bytes || (bits_of(slabs, (uint32_t)index)[slot / 64] >> (slot % 64) & 1) != 0) {
        return KV_E_CORRUPT;
    }
    mark(slabs, (uint32_t)index, slot);
    return KV_OK;
}

uint64_t kv_slabs_give(struct kv_slabs *slabs, uint64_t offset)
{
    uint64_t index = offset / slabs->slab_bytes, inside = offset % slabs->slab_bytes;
    KV_ASSERT(index < slabs->count);
    struct slab *slab = &slabs->slabs[index];
    uint64_t slot_bytes = slab->slot_bytes;
    KV_ASSERT(slot_bytes != 0 && inside % slot_bytes == 0);
    uint32_t slot = (uint32_t)(inside / slot_bytes);
    uint64_t *word = &bits_of(slabs, (uint32_t)index)[slot / 64];
    KV_ASSERT(slot < slab->total && (*word >> (slot % 64) & 1) == 1);
    *word &= ~(UINT64_C(1) << (slot % 64));
    if (slab->used == slab->total) {
        list_add(slabs, (uint32_t)index);
    }
    slab->used--;
    slab->hint = slot / 64;
    slabs->slots_used--;
    slabs->used_bytes -= slot_bytes;
    if (slab->used == 0) {
        uncut(slabs, (uint32_t)index);
    }
    return slot_bytes;
}

uint64_t kv_slabs_used_bytes(const struct kv_slabs *slabs)
{
    return slabs->used_bytes;
}

uint64_t kv_slabs_slots_used(const struct kv_slabs *slabs)
{
    return slabs->slots_used;
}

uint32_t kv_slabs_slabs_used(const struct kv_slabs *slabs)
{
    return slabs->count - slabs->pool_count;
}

static uint32_t count_bits(const struct kv_slabs *s, uint32_t index)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->words; i++) {
        count += (uint32_t)__builtin_popcountll(bits_of(s, index)[i]);
    }
    return count;
}

static bool slab_adds_up(const struct kv_slabs *s, uint32_t index)
{
    const struct slab *slab = &s->slabs[index];
    uint32_t expected = slab->slot_bytes == 0 ? 0 : (uint32_t)(s->slab_bytes / slab->slot_bytes);
    bool has_room = slab->slot_bytes != 0 && slab->used < slab->total;
    bool empty_is_in_pool = (slab->used == 0) == (slab->slot_bytes == 0);
    return slab->total == expected && count_bits(s, index) == slab->used && slab->used <= slab->total &&
           slab->listed == has_room && empty_is_in_pool;
}

static bool pool_adds_up(const struct kv_slabs *s)
{
    uint32_t in_pool = 0;
    for (uint32_t i = s->pool; i != NONE && in_pool <= s->count; i = s->slabs[i].next) {
        if (s->slabs[i].slot_bytes != 0) {
            return false;
        }
        in_pool++;
    }
    return in_pool == s->pool_count;
}

bool kv_slabs_check(const struct kv_slabs *slabs)
{
    uint64_t used_bytes = 0, slots_used = 0;
    uint32_t in_pool = 0;
    for (uint32_t i = 0; i < slabs->count; i++) {
        const struct slab *slab = &slabs->slabs[i];
        if (!slab_adds_up(slabs, i)) {
            return false;
        }
        used_bytes += slab->used * slab->slot_bytes;
        slots_used += slab->used;
        in_pool += slab->slot_bytes == 0 ? 1 : 0;
    }
    return used_bytes == slabs->used_bytes && slots_used == slabs->slots_used && in_pool == slabs->pool_count &&
           pool_adds_up(slabs);
}
