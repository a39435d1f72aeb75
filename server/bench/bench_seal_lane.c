/*
 * A thread's share of `kvrun bench seal`: pages, slots, a sealer and the arms. It times nothing but the arm itself, by
 * the thread's own clock, so that what others take of the processor in between does not count.
 */
#include "server/bench/bench_seal_int.h"

#include "dataplane/base/check.h"
#include "dataplane/tier/tier_dram.h"

#include <string.h>
#include <time.h>

static uint64_t page_bytes(const struct seal_lane *lane)
{
    return lane->shape->regions * lane->shape->run_bytes;
}

/* What is sealed lies apart from what is copied, so that an arm may run whatever ran before it. */
static KV_RC open_slots(struct seal_lane *lane)
{
    uint64_t bytes = kv_sealed_bytes(page_bytes(lane));
    KV_TRY(kv_dram_new(bytes * lane->shape->slots * 2, bytes * lane->shape->slots, &lane->dram));
    for (uint32_t i = 0; i < 2 * lane->shape->slots; i++) {
        uint8_t **slot = i < lane->shape->slots ? &lane->slots[i] : &lane->copies[i - lane->shape->slots];
        KV_TRY(kv_dram_take(lane->dram, bytes, slot));
        memset(*slot, 0x5a, bytes); /* the memory is there before anything is timed */
    }
    return KV_OK;
}

KV_RC seal_lane_open(struct seal_lane *lane, struct kv_pool *pool, const struct seal_shape *shape, uint32_t first_slot)
{
    KV_ASSERT(shape->slots <= SEAL_SLOTS_MAX && shape->regions <= SEAL_REGIONS_MAX);
    *lane = (struct seal_lane){.pool = pool, .shape = shape, .first_slot = first_slot};
    KV_TRY(kv_sealer_new(KV_CIPHER_AUTO, &lane->sealer));
    KV_TRY(kv_secret_random(&kv_env_system, 32, &lane->key));
    KV_TRY(kv_locked_alloc((size_t)page_bytes(lane), &lane->staging));
    KV_TRY(seal_evp_new(&lane->evp));
    KV_TRY(open_slots(lane));
    seal_lane_run(lane, SEAL_SEAL, 0, shape->blocks); /* so that there is something to open */
    return lane->rc;
}

void seal_lane_close(struct seal_lane *lane)
{
    kv_sealer_free(lane->sealer);
    kv_secret_free(lane->key);
    if (lane->staging != NULL) {
        kv_locked_free(lane->staging, (size_t)page_bytes(lane));
    }
    seal_evp_free(lane->evp);
    kv_dram_free(lane->dram);
    *lane = (struct seal_lane){.rc = KV_OK};
}

static void copy_out(struct seal_lane *lane, uint8_t *slot)
{
    uint8_t *to = slot + kv_sealed_header_bytes(page_bytes(lane));
    for (uint32_t i = 0; i < lane->shape->regions; i++) {
        memcpy(to, lane->segments[i].data, lane->segments[i].len);
        to += lane->segments[i].len;
    }
}

static void copy_in(struct seal_lane *lane, const uint8_t *slot)
{
    const uint8_t *from = slot + kv_sealed_header_bytes(page_bytes(lane));
    for (uint32_t i = 0; i < lane->shape->regions; i++) {
        memcpy(lane->segments[i].data, from, lane->segments[i].len);
        from += lane->segments[i].len;
    }
}

static struct kv_sealed_context context_of(const struct seal_lane *lane, uint32_t page)
{
    struct kv_sealed_context context = {.kind = KV_SEALED_BLOCK, .plaintext_length = page_bytes(lane)};
    memcpy(context.block_id.b, &page, sizeof page);
    memcpy(context.layout, kv_pool_fingerprint(lane->pool), sizeof context.layout);
    return context;
}

static KV_RC seal(struct seal_lane *lane, uint32_t page, uint8_t *slot)
{
    uint8_t salt[KV_SALT_BYTES];
    struct kv_sealed_context context = context_of(lane, page);
    KV_TRY(kv_env_system.random(kv_env_system.ctx, salt, sizeof salt));
    return kv_sealed_seal(lane->sealer, lane->key, &context, salt, lane->segments, lane->shape->regions, slot);
}

static KV_RC open(struct seal_lane *lane, uint32_t page, const uint8_t *slot)
{
    struct kv_sealed_context context = context_of(lane, page);
    return kv_sealed_open(lane->sealer, lane->key, &context, slot, kv_sealed_bytes(page_bytes(lane)), lane->staging,
                          (size_t)page_bytes(lane), lane->segments, lane->shape->regions);
}

KV_RC seal_lane_block(struct seal_lane *lane, enum seal_arm arm, uint32_t page, uint8_t *slot)
{
    KV_ASSERT(kv_pool_segments(lane->pool, lane->first_slot + page, lane->segments));
    switch (arm) {
    case SEAL_COPY:
        copy_out(lane, slot);
        return KV_OK;
    case SEAL_SCATTER:
        copy_in(lane, slot);
        return KV_OK;
    case SEAL_SEAL:
        return seal(lane, page, slot);
    case SEAL_OPEN:
        return open(lane, page, slot);
    case SEAL_EVP:
        break;
    }
    return seal_evp_seal(lane->evp, lane->context, lane->segments, lane->shape->regions,
                         slot + kv_sealed_header_bytes(page_bytes(lane)));
}

uint32_t seal_lane_page(const struct seal_lane *lane, unsigned block)
{
    return block * 37 % lane->shape->slots;
}

static double cpu_seconds(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void seal_lane_run(struct seal_lane *lane, enum seal_arm arm, unsigned first, unsigned blocks)
{
    double begun = cpu_seconds();
    lane->rc = KV_OK;
    for (unsigned i = 0; i < blocks && lane->rc == KV_OK; i++) {
        uint32_t page = seal_lane_page(lane, first + i);
        bool sealed = arm == SEAL_SEAL || arm == SEAL_OPEN;
        lane->rc = seal_lane_block(lane, arm, page, sealed ? lane->slots[page] : lane->copies[page]);
    }
    lane->cpu_s = cpu_seconds() - begun;
    kv_sealer_forget(lane->sealer);
}
