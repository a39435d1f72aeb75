/*
 * Which slots of an arena are taken: slabs of one size, each cut to the exact slot size of one class while it holds
 * anything, and given back to the common pool when it is empty. Pure bookkeeping over offsets: it touches no slot. A
 * slot is taken from the fullest slab of its class, so that the others can run empty and change class. Thread: its
 * owner's. Allocates nothing after kv_slabs_new.
 */
#ifndef KV_TIER_SLABS_INT_H
#define KV_TIER_SLABS_INT_H

#include "dataplane/base/err.h"

#define KV_SLOT_UNIT_BYTES UINT64_C(4096)

struct kv_slabs;

/* `slab_bytes` is a multiple of 4 KiB; at most 65,535 slabs. */
KV_RC kv_slabs_new(uint32_t slab_count, uint64_t slab_bytes, struct kv_slabs **ret_slabs);
void kv_slabs_free(struct kv_slabs *slabs);
/* KV_E_LIMIT: larger than a slab, or no multiple of 4 KiB. KV_E_NO_SPACE: no free slot of this size and no free slab.
 */
KV_RC kv_slabs_take(struct kv_slabs *slabs, uint64_t bytes, uint64_t *ret_offset);
/* Takes exactly this slot, for what was there before. KV_E_CORRUPT: it is no slot of that size, or is taken. */
KV_RC kv_slabs_claim(struct kv_slabs *slabs, uint64_t offset, uint64_t bytes);
/* `offset` is a slot in use (asserted). Returns its size. */
uint64_t kv_slabs_give(struct kv_slabs *slabs, uint64_t offset);
uint64_t kv_slabs_used_bytes(const struct kv_slabs *slabs);
uint64_t kv_slabs_slots_used(const struct kv_slabs *slabs);
uint32_t kv_slabs_slabs_used(const struct kv_slabs *slabs);
/* Recounts everything: free + used = total in every slab, lists and totals agree. */
bool kv_slabs_check(const struct kv_slabs *slabs);

#endif
