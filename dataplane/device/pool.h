/*
 * A pool: the engine's paged KV memory, mapped here, with a checked layout. Kind `memfd`: the descriptor is sealed
 * against shrinking (F_SEAL_SHRINK), so that no page can vanish under a transfer; a descriptor that can shrink is
 * refused, after one attempt to seal it ourselves.
 *
 * Layout `regions`: a page (slot) is one run of bytes in each region, in the regions' order:
 *      address(region, slot) = base + offset_bytes + slot * stride_bytes, run_bytes long.
 * Layout `opaque`: one region, stride = run = page bytes.
 * The layout's SHA-256 over a canonical encoding of everything that changes the meaning of the bytes (order, strides
 * excluded, runs, dtype, heads, tokens a page, format, engine version) is the fingerprint; it is part of each block's
 * context.
 *
 * Thread: attach, ref and unref any; the data only the lane.
 */
#ifndef KV_DEVICE_POOL_H
#define KV_DEVICE_POOL_H

#include "dataplane/base/err.h"
#include "dataplane/crypto/sealed.h"

struct kv_region {
    uint64_t offset_bytes; /* of slot 0, from the start of the mapping */
    uint64_t stride_bytes; /* from slot to slot */
    uint64_t run_bytes;    /* of one slot in this region */
};

struct kv_pool_spec {
    struct kv_id id, engine, tenant;
    int fd;              /* taken on success */
    uint64_t size_bytes; /* what the engine says it has */
    uint32_t slots;
    uint32_t region_count;
    const struct kv_region *regions; /* borrowed for the call; in the order of the payload */
    uint64_t bytes_per_block;        /* what the engine thinks the sum of runs is */
    /* Identity: length-prefixed into the fingerprint. Borrowed for the call. */
    const char *kind;   /* "regions" or "opaque" */
    const char *format; /* element type and interleave, or the opaque format's name */
    const char *engine_version;
    uint32_t tokens_per_block;
};

struct kv_pool;

/* KV_E_GEOMETRY_MISMATCH with the arithmetic in `info`: a sum that differs, a region past the end, runs that overlap,
 * zero or huge counts, products that overflow. KV_E_POOL_TRUNCATED: the descriptor is shorter than size_bytes.
 * KV_E_POOL_NOT_SEALED. */
KV_RC kv_pool_attach(const struct kv_pool_spec *spec, struct kv_errinfo *info, struct kv_pool **ret_pool);
struct kv_pool *kv_pool_ref(struct kv_pool *pool);
void kv_pool_unref(struct kv_pool *pool); /* unmaps with the last one; NULL is fine */
/* From now on no transfer begins on it. It stays mapped until the last reference goes. */
void kv_pool_close(struct kv_pool *pool);
bool kv_pool_is_closed(struct kv_pool *pool);

const struct kv_id *kv_pool_id(const struct kv_pool *pool);
const struct kv_id *kv_pool_engine(const struct kv_pool *pool);
const struct kv_id *kv_pool_tenant(const struct kv_pool *pool);
const uint8_t *kv_pool_fingerprint(const struct kv_pool *pool); /* 32 bytes */
uint64_t kv_pool_block_bytes(const struct kv_pool *pool);
uint32_t kv_pool_tokens(const struct kv_pool *pool); /* of one block */
uint32_t kv_pool_slots(const struct kv_pool *pool);
uint32_t kv_pool_region_count(const struct kv_pool *pool);

/* Who used a page last, as its engine told it: engines count a page's generation up when they give the page to another
 * request. Nothing is kept for a pool whose engine does not. Thread: any. */
struct kv_page_use {
    struct kv_id session;
    uint64_t generation;
};
bool kv_pool_counts_uses(struct kv_pool *pool);                                             /* somebody noted one */
bool kv_pool_last_use(struct kv_pool *pool, uint32_t slot, struct kv_page_use *ret_use);    /* false: nobody told */
KV_RC kv_pool_note_use(struct kv_pool *pool, uint32_t slot, const struct kv_page_use *use); /* KV_E_NO_MEMORY */

/* Fills region_count segments; false when the slot is out of range. */
bool kv_pool_segments(const struct kv_pool *pool, uint32_t slot, struct kv_segment *ret_segments);

#endif
