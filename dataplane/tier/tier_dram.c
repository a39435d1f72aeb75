/*
 * The dram tier; see tier_dram.h. It hands out addresses in one mapping and never reads or writes what lies there.
 */
#include "dataplane/tier/tier_dram.h"
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/slabs_int.h"

#include <sys/mman.h>

#define SLAB_BYTES_DEFAULT (UINT64_C(64) << 20)
#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

struct kv_dram {
    struct kv_slabs *slabs;
    uint8_t *mapping; /* what munmap gets back */
    size_t mapping_bytes;
    uint8_t *arena; /* in the mapping, on a huge page's border */
    uint64_t arena_bytes, slab_bytes;
};

static uint64_t choose_slab_bytes(uint64_t bytes, uint64_t asked)
{
    uint64_t wanted = asked != 0 ? asked : bytes / 4 < SLAB_BYTES_DEFAULT ? bytes / 4 : SLAB_BYTES_DEFAULT;
    if (wanted > bytes) {
        wanted = bytes;
    }
    return wanted / KV_SLOT_UNIT_BYTES * KV_SLOT_UNIT_BYTES;
}

/* Sealed bytes in a core file help nobody; huge pages halve the cost of the first touch. Both are wishes. */
static KV_RC map_arena(struct kv_dram *dram)
{
    dram->mapping_bytes = (size_t)(dram->arena_bytes + HUGE_PAGE_BYTES);
    void *mapping = mmap(NULL, dram->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
        return KV_E_NO_MEMORY;
    }
    dram->mapping = mapping;
    uintptr_t skew = (uintptr_t)mapping % HUGE_PAGE_BYTES;
    dram->arena = dram->mapping + (skew == 0 ? 0 : HUGE_PAGE_BYTES - skew);
    madvise(dram->arena, (size_t)dram->arena_bytes, MADV_HUGEPAGE);
    madvise(dram->arena, (size_t)dram->arena_bytes, MADV_DONTDUMP);
    return KV_OK;
}

KV_RC kv_dram_new(uint64_t bytes, uint64_t slab_bytes, struct kv_dram **ret_dram)
{
    uint64_t chosen = choose_slab_bytes(bytes, slab_bytes);
    if (chosen == 0 || bytes / chosen > UINT16_MAX || bytes > (UINT64_C(1) << 46)) {
        return KV_E_LIMIT;
    }
    struct kv_dram *dram = kv_alloc(sizeof(*dram));
    if (dram == NULL) {
        return KV_E_NO_MEMORY;
    }
    dram->slab_bytes = chosen;
    dram->arena_bytes = bytes / chosen * chosen;
    enum kv_err rc = kv_slabs_new((uint32_t)(bytes / chosen), chosen, &dram->slabs);
    if (rc == KV_OK) {
        rc = map_arena(dram);
    }
    if (rc != KV_OK) {
        kv_dram_free(dram);
        return rc;
    }
    *ret_dram = dram;
    return KV_OK;
}

void kv_dram_free(struct kv_dram *dram)
{
    if (dram == NULL) {
        return;
    }
    if (dram->mapping != NULL) {
        munmap(dram->mapping, dram->mapping_bytes);
    }
    kv_slabs_free(dram->slabs);
    kv_free(dram);
}

KV_RC kv_dram_take(struct kv_dram *dram, uint64_t bytes, uint8_t **ret_slot)
{
    uint64_t offset;
    KV_TRY(kv_slabs_take(dram->slabs, bytes, &offset));
    *ret_slot = dram->arena + offset;
    return KV_OK;
}

void kv_dram_give(struct kv_dram *dram, uint8_t *slot)
{
    KV_ASSERT(slot >= dram->arena && slot < dram->arena + dram->arena_bytes);
    kv_slabs_give(dram->slabs, (uint64_t)(slot - dram->arena));
}

void kv_dram_arena(const struct kv_dram *dram, uint8_t **ret_start, uint64_t *ret_bytes)
{
    *ret_start = dram->arena;
    *ret_bytes = dram->arena_bytes;
}

void kv_dram_stats(const struct kv_dram *dram, struct kv_dram_stats *ret_stats)
{
    *ret_stats = (struct kv_dram_stats){
        .capacity_bytes = dram->arena_bytes,
        .used_bytes = kv_slabs_used_bytes(dram->slabs),
        .slab_bytes_in_use = kv_slabs_slabs_used(dram->slabs) * dram->slab_bytes,
        .slots_used = kv_slabs_slots_used(dram->slabs),
    };
}

bool kv_dram_check(const struct kv_dram *dram)
{
    return kv_slabs_check(dram->slabs);
}
