/* memfd_create, ftruncate, F_SEAL_SHRINK, mmap, touch: in this order, because a seal before the size would seal size 0.
 */
#include "tests/engine/pool_memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096u

static const char *map_pool(struct kv_pool_memory *pool)
{
    if (ftruncate(pool->fd, (off_t)pool->size_bytes) != 0) {
        return "the pool cannot get its size; is there enough memory?";
    }
    if (fcntl(pool->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        return "the pool cannot be sealed against shrinking";
    }
    void *base = mmap(NULL, pool->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, pool->fd, 0);
    if (base == MAP_FAILED) {
        return "the pool cannot be mapped";
    }
    pool->base = base;
    kv_pool_memory_zero(pool);
    return NULL;
}

const char *kv_pool_memory_new(size_t slot_bytes, uint32_t slot_count, struct kv_pool_memory *ret_pool)
{
    size_t bytes;
    if (slot_bytes == 0 || slot_count == 0 || __builtin_mul_overflow(slot_bytes, (size_t)slot_count, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)(PAGE_BYTES - 1), &bytes)) {
        return "the pool's size does not make sense";
    }
    struct kv_pool_memory pool = {
        .slot_bytes = slot_bytes, .slot_count = slot_count, .size_bytes = bytes & ~(size_t)(PAGE_BYTES - 1)};
    pool.fd = memfd_create("kvrun-engine-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (pool.fd < 0) {
        return "memfd_create failed";
    }
    const char *why = map_pool(&pool);
    if (why != NULL) {
        kv_pool_memory_done(&pool);
        return why;
    }
    *ret_pool = pool;
    return NULL;
}

void kv_pool_memory_done(struct kv_pool_memory *pool)
{
    if (pool->base != NULL) {
        munmap(pool->base, pool->size_bytes);
    }
    if (pool->size_bytes != 0) {
        close(pool->fd);
    }
    *pool = (struct kv_pool_memory){.fd = -1};
}

uint8_t *kv_pool_memory_slot(const struct kv_pool_memory *pool, uint32_t slot)
{
    return slot < pool->slot_count ? pool->base + (size_t)slot * pool->slot_bytes : NULL;
}

void kv_pool_memory_zero(struct kv_pool_memory *pool)
{
    memset(pool->base, 0, pool->size_bytes);
}
