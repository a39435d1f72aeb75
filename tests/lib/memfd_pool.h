/*
 * Pools for tests: a memfd with a layout of some regions, pages with known bytes.
 */
#ifndef KV_TESTS_MEMFD_POOL_H
#define KV_TESTS_MEMFD_POOL_H

#include "dataplane/device/pool.h"

#define KVT_POOL_REGIONS 16

/* What a test changes before it attaches. The spec points into this struct. */
struct kvt_pool_plan {
    struct kv_pool_spec spec;
    struct kv_region regions[KVT_POOL_REGIONS];
};

int kvt_memfd(uint64_t bytes, unsigned flags, int seals); /* exits 77 when there is none */
/* `region_count` regions one after the other, each of `slots` runs of `run_bytes`; sealed memory of exactly that size.
 */
void kvt_pool_plan(struct kvt_pool_plan *plan, uint32_t region_count, uint32_t slots, uint64_t run_bytes);
/* Attaches; aborts when that fails. */
struct kv_pool *kvt_pool_new(uint32_t region_count, uint32_t slots, uint64_t run_bytes);

void kvt_page_fill(const struct kv_pool *pool, uint32_t slot, uint64_t seed); /* bytes that depend on seed and place */
bool kvt_page_has(const struct kv_pool *pool, uint32_t slot, uint64_t seed);
void kvt_page_set(const struct kv_pool *pool, uint32_t slot, uint8_t value);
bool kvt_page_is(const struct kv_pool *pool, uint32_t slot, uint8_t value);

#endif
