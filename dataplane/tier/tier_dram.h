/*
 * The dram tier: sealed blocks in anonymous memory, 64 MiB slabs (or less for a small arena), each cut to the exact
 * slot size of one class; an empty slab returns to the common pool. Ciphertext only; nothing here was promised as
 * durable. It is also where the colder tiers read from and write to, so a block moves without a further copy; therefore
 * it is a slab allocator with addresses and not a kv_tier_ops. Slots are 4 KiB aligned; the arena is one mapping that
 * an io ring can register. Thread: lane. Allocates nothing after kv_dram_new.
 */
#ifndef KV_TIER_DRAM_H
#define KV_TIER_DRAM_H

#include "dataplane/base/err.h"

struct kv_dram;

struct kv_dram_stats {
    uint64_t capacity_bytes, used_bytes /* slots in use times their size */, slab_bytes_in_use, slots_used;
};

KV_RC kv_dram_new(uint64_t bytes, uint64_t slab_bytes, struct kv_dram **ret_dram);
void kv_dram_free(struct kv_dram *dram);
/* `bytes` is a multiple of 4 KiB, at most a slab. KV_E_NO_SPACE: no free slot and no free slab; evict and try again.
 * KV_E_LIMIT: larger than a slab. */
KV_RC kv_dram_take(struct kv_dram *dram, uint64_t bytes, uint8_t **ret_slot);
void kv_dram_give(struct kv_dram *dram, uint8_t *slot);
void kv_dram_arena(const struct kv_dram *dram, uint8_t **ret_start, uint64_t *ret_bytes);
void kv_dram_stats(const struct kv_dram *dram, struct kv_dram_stats *ret_stats);
bool kv_dram_check(const struct kv_dram *dram); /* free + used = total, in every slab; for tests and debug builds */

#endif
