#include "tests/lib/memfd_pool.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int kvt_memfd(uint64_t bytes, unsigned flags, int seals)
{
    int fd = memfd_create("kvt", MFD_CLOEXEC | flags);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        exit(77);
    }
    if (seals != 0 && fcntl(fd, F_ADD_SEALS, seals) != 0) {
        exit(77);
    }
    return fd;
}

void kvt_pool_plan(struct kvt_pool_plan *plan, uint32_t region_count, uint32_t slots, uint64_t run_bytes)
{
    *plan = (struct kvt_pool_plan){.spec = {.slots = slots,
                                            .region_count = region_count,
                                            .size_bytes = region_count * slots * run_bytes,
                                            .bytes_per_block = region_count * run_bytes,
                                            .kind = "regions",
                                            .format = "bf16",
                                            .engine_version = "test 1",
                                            .tokens_per_block = 16}};
    memset(plan->spec.id.b, 0x11, sizeof plan->spec.id.b);
    memset(plan->spec.engine.b, 0x22, sizeof plan->spec.engine.b);
    memset(plan->spec.tenant.b, 0x33, sizeof plan->spec.tenant.b);
    for (uint32_t i = 0; i < region_count; i++) {
        plan->regions[i] = (struct kv_region){
            .offset_bytes = i * slots * run_bytes, .stride_bytes = run_bytes, .run_bytes = run_bytes};
    }
    plan->spec.regions = plan->regions;
    plan->spec.fd = kvt_memfd(plan->spec.size_bytes, MFD_ALLOW_SEALING, F_SEAL_SHRINK);
}

struct kv_pool *kvt_pool_new(uint32_t region_count, uint32_t slots, uint64_t run_bytes)
{
    struct kvt_pool_plan plan;
    struct kv_pool *pool = NULL;
    struct kv_errinfo info = {.code = KV_OK};
    kvt_pool_plan(&plan, region_count, slots, run_bytes);
    if (kv_pool_attach(&plan.spec, &info, &pool) != KV_OK) {
        (void)fprintf(stderr, "pool: %s\n", info.text);
        abort();
    }
    return pool;
}

static uint8_t byte_of(uint64_t seed, uint64_t place)
{
    uint64_t x = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + (place / 8) * UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 31;
    return (uint8_t)(x >> (place % 8 * 7));
}

typedef bool byte_fn(uint8_t *byte, uint64_t place, uint64_t arg);

static bool each(const struct kv_pool *pool, uint32_t slot, byte_fn *fn, uint64_t arg)
{
    struct kv_segment segments[KVT_POOL_REGIONS];
    uint64_t place = 0;
    if (!kv_pool_segments(pool, slot, segments)) {
        abort();
    }
    for (uint32_t r = 0; r < kv_pool_region_count(pool); r++) {
        for (size_t i = 0; i < segments[r].len; i++, place++) {
            if (!fn(&segments[r].data[i], place, arg)) {
                return false;
            }
        }
    }
    return true;
}

static bool put_seed(uint8_t *byte, uint64_t place, uint64_t seed)
{
    *byte = byte_of(seed, place);
    return true;
}

static bool has_seed(uint8_t *byte, uint64_t place, uint64_t seed)
{
    return *byte == byte_of(seed, place);
}

static bool put_value(uint8_t *byte, uint64_t place, uint64_t value)
{
    (void)place;
    *byte = (uint8_t)value;
    return true;
}

static bool has_value(uint8_t *byte, uint64_t place, uint64_t value)
{
    (void)place;
    return *byte == (uint8_t)value;
}

void kvt_page_fill(const struct kv_pool *pool, uint32_t slot, uint64_t seed)
{
    (void)each(pool, slot, put_seed, seed);
}

bool kvt_page_has(const struct kv_pool *pool, uint32_t slot, uint64_t seed)
{
    return each(pool, slot, has_seed, seed);
}

void kvt_page_set(const struct kv_pool *pool, uint32_t slot, uint8_t value)
{
    (void)each(pool, slot, put_value, value);
}

bool kvt_page_is(const struct kv_pool *pool, uint32_t slot, uint8_t value)
{
    return each(pool, slot, has_value, value);
}
