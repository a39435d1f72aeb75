/* Pages of an engine, as the benches that seal need them; see bench_seal_int.h. */
#include "server/bench/bench_seal_int.h"

#include "dataplane/base/check.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static KV_RC attach(const struct seal_shape *shape, unsigned lanes, int fd, struct kv_errinfo *info,
                    struct kv_pool **ret_pool)
{
    struct kv_region regions[SEAL_REGIONS_MAX];
    uint64_t strip = shape->run_bytes * shape->slots * lanes;
    for (uint32_t i = 0; i < shape->regions; i++) {
        regions[i] = (struct kv_region){
            .offset_bytes = i * strip, .stride_bytes = shape->run_bytes, .run_bytes = shape->run_bytes};
    }
    const struct kv_pool_spec spec = {.id = {{1}},
                                      .engine = {{2}},
                                      .tenant = {{3}},
                                      .fd = fd,
                                      .size_bytes = shape->regions * strip,
                                      .slots = shape->slots * lanes,
                                      .region_count = shape->regions,
                                      .regions = regions,
                                      .bytes_per_block = shape->regions * shape->run_bytes,
                                      .kind = "regions",
                                      .format = "bench",
                                      .engine_version = "1",
                                      .tokens_per_block = 16};
    return kv_pool_attach(&spec, info, ret_pool);
}

/* Nothing of what is timed looks at the bytes. */
static void fill(const struct kv_pool *pool)
{
    struct kv_segment segments[SEAL_REGIONS_MAX];
    for (uint32_t slot = 0; slot < kv_pool_slots(pool); slot++) {
        KV_ASSERT(kv_pool_segments(pool, slot, segments));
        for (uint32_t i = 0; i < kv_pool_region_count(pool); i++) {
            memset(segments[i].data, (int)(slot * 31 + i), segments[i].len);
        }
    }
}

KV_RC seal_pool_new(const struct seal_shape *shape, unsigned lanes, struct kv_errinfo *info, struct kv_pool **ret_pool)
{
    KV_ASSERT(shape->regions <= SEAL_REGIONS_MAX);
    off_t bytes = (off_t)(shape->regions * shape->run_bytes * shape->slots * lanes);
    int fd = memfd_create("kvrun-bench-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    enum kv_err rc = KV_E_NO_MEMORY;
    if (fd >= 0 && ftruncate(fd, bytes) == 0) {
        rc = attach(shape, lanes, fd, info, ret_pool);
    }
    if (rc == KV_OK) {
        fill(*ret_pool);
        return KV_OK;
    }
    if (fd >= 0) {
        close(fd);
    }
    return kv_fail(info, rc, "no memory to share for the pool");
}
