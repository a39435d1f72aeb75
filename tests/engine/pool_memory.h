/*
 * The engine's pool: a memfd that cannot shrink, mapped, touched page by page before anything is timed, cut into slots
 * of one block each. Its descriptor goes to the server, which maps the same pages. Thread: one at a time.
 */
#ifndef KV_TESTS_ENGINE_POOL_MEMORY_H
#define KV_TESTS_ENGINE_POOL_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct kv_pool_memory {
    int fd;            /* owned */
    uint8_t *base;     /* owned mapping */
    size_t slot_bytes; /* exactly a block; slots follow each other without a gap */
    uint32_t slot_count;
    size_t size_bytes; /* whole pages */
};

/* NULL on success, else a static text. */
const char *kv_pool_memory_new(size_t slot_bytes, uint32_t slot_count, struct kv_pool_memory *ret_pool)
    __attribute__((warn_unused_result));
void kv_pool_memory_done(struct kv_pool_memory *pool);
uint8_t *kv_pool_memory_slot(const struct kv_pool_memory *pool, uint32_t slot);
/* Nothing a later comparison could mistake for restored bytes stays behind. */
void kv_pool_memory_zero(struct kv_pool_memory *pool);

#endif
