/*
 * The questions and orders of engine.h: each fills a control, hands it to the lane and waits for the answer.
 * It never reads the index itself.
 */
#include "dataplane/base/mem.h"
#include "dataplane/engine/lane_int.h"

#include <stdlib.h>
#include <string.h>

KV_RC kv_engine_lookup(struct kv_engine *engine, const struct kv_id *scope, uint32_t count,
                       const struct kv_block_id *block_ids, uint8_t *ret_tiers)
{
    if (count > (uint64_t)KV_MAX_BLOCKS_PER_CALL) {
        return KV_E_LIMIT;
    }
    struct control control = {.kind = CONTROL_LOOKUP,
                              .deadline_ns = UINT64_MAX,
                              .scope = scope,
                              .count = count,
                              .block_ids = block_ids,
                              .ret_tiers = ret_tiers};
    return kv_engine_ask(engine, &control);
}

KV_RC kv_engine_fence(struct kv_engine *engine, const struct kv_id *scope, uint64_t deadline_ns)
{
    struct control control = {.kind = CONTROL_FENCE, .deadline_ns = deadline_ns, .scope = scope};
    return kv_engine_ask(engine, &control);
}

KV_RC kv_engine_drop_scope(struct kv_engine *engine, const struct kv_id *scope, uint64_t *ret_blocks)
{
    uint64_t deadline = kv_now_ns(engine->conf.env) + (uint64_t)KV_MAX_TRANSFER_MS * KV_MS_NS;
    struct control control = {.kind = CONTROL_DROP, .deadline_ns = deadline, .scope = scope};
    KV_TRY(kv_engine_ask(engine, &control));
    *ret_blocks = control.blocks;
    return KV_OK;
}

KV_RC kv_engine_dropped(struct kv_engine *engine, uint64_t deadline_ns)
{
    struct control control = {.kind = CONTROL_DROPPED, .deadline_ns = deadline_ns};
    return kv_engine_ask(engine, &control);
}

KV_RC kv_engine_sample(struct kv_engine *engine, const struct kv_id *scope, enum kv_tier_id tier, uint32_t max,
                       struct kv_buf *ret_headers, uint32_t *ret_lens, uint32_t *ret_count)
{
    uint64_t deadline = kv_now_ns(engine->conf.env) + (uint64_t)KV_MAX_TRANSFER_MS * KV_MS_NS;
    struct control control = {.kind = CONTROL_SAMPLE,
                              .deadline_ns = deadline,
                              .scope = scope,
                              .tier = tier,
                              .count = max,
                              .ret_buf = ret_headers,
                              .ret_lens = ret_lens};
    KV_TRY(kv_engine_ask(engine, &control));
    *ret_count = (uint32_t)control.blocks;
    return KV_OK;
}

KV_RC kv_engine_scope_usage(struct kv_engine *engine, const struct kv_id *scope, struct kv_scope_usage *ret_usage)
{
    return kv_engine_scopes_usage(engine, scope, 1, ret_usage);
}

KV_RC kv_engine_scopes_usage(struct kv_engine *engine, const struct kv_id *scopes, uint32_t count,
                             struct kv_scope_usage *ret_usage)
{
    if (count > KV_ENGINE_SCOPES_ASKED) {
        return KV_E_LIMIT;
    }
    struct control control = {.kind = CONTROL_USAGE, .deadline_ns = UINT64_MAX, .scope = scopes, .count = count};
    KV_TRY(kv_engine_ask(engine, &control));
    *ret_usage = control.usage;
    return KV_OK;
}

/* --- a scope's blocks --------------------------------------------------------------------------------------------- */

#define FEW 4096u
#define BUCKETS 65536u
#define BUCKET_FEW 16u

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct kv_block_id));
}

static size_t bucket_of(const struct kv_block_id *id)
{
    return (size_t)id->b[0] << 8 | id->b[1];
}

/* Where each bucket ends in `sorted`, with `ids` put there; what is in one bucket is in no order yet. */
static void spread(const struct kv_block_id *ids, size_t count, struct kv_block_id *sorted, size_t *ends)
{
    size_t end = 0;
    for (size_t i = 0; i < count; i++) {
        ends[bucket_of(&ids[i])]++;
    }
    for (size_t bucket = 0; bucket < BUCKETS; bucket++) {
        size_t begin = end;
        end += ends[bucket];
        ends[bucket] = begin;
    }
    for (size_t i = 0; i < count; i++) {
        sorted[ends[bucket_of(&ids[i])]++] = ids[i];
    }
}

/* One by one into those that are in order already. */
static void sort_few(struct kv_block_id *ids, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct kv_block_id id = ids[i];
        size_t at = i;
        for (; at > 0 && compare_ids(&id, &ids[at - 1]) < 0; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = id;
    }
}

/* Ids are outputs of a keyed hash, so buckets by their first bytes are small. Where that should not be so it only takes
 * longer. */
static KV_RC sort_many(struct kv_block_id *ids, size_t count)
{
    struct kv_block_id *sorted KV_CLEANUP(kv_freep) = kv_alloc_array(count, sizeof *sorted);
    size_t *ends KV_CLEANUP(kv_freep) = kv_alloc_array(BUCKETS, sizeof *ends);
    if (sorted == NULL || ends == NULL) {
        return KV_E_NO_MEMORY;
    }
    spread(ids, count, sorted, ends);
    for (size_t bucket = 0, begin = 0; bucket < BUCKETS; begin = ends[bucket++]) {
        size_t here = ends[bucket] - begin;
        if (here > BUCKET_FEW) {
            qsort(sorted + begin, here, sizeof *sorted, compare_ids);
        } else {
            sort_few(sorted + begin, here);
        }
    }
    memcpy(ids, sorted, count * sizeof *ids);
    return KV_OK;
}

/* Here and not on the lane: it takes time in proportion to the scope. */
static KV_RC sort_ids(struct kv_block_id *ids, size_t count)
{
    if (count > FEW) {
        return sort_many(ids, count);
    }
    qsort(ids, count, sizeof *ids, compare_ids);
    return KV_OK;
}

KV_RC kv_engine_scope_blocks(struct kv_engine *engine, const struct kv_id *scope, struct kv_buf *ret_ids)
{
    struct kv_scope_usage usage;
    struct control control = {.kind = CONTROL_BLOCKS, .deadline_ns = UINT64_MAX, .scope = scope, .ret_buf = ret_ids};
    KV_TRY(kv_engine_scope_usage(engine, scope, &usage));
    kv_buf_reset(ret_ids);
    kv_buf_reserve(ret_ids, usage.blocks * sizeof(struct kv_block_id));
    KV_TRY(kv_buf_check(ret_ids));
    KV_TRY(kv_engine_ask(engine, &control));
    return ret_ids->len == 0
               ? KV_OK
               : sort_ids((struct kv_block_id *)(void *)ret_ids->data, ret_ids->len / sizeof(struct kv_block_id));
}

KV_RC kv_engine_usages(struct kv_engine *engine, struct kv_id *ret_scopes, struct kv_scope_usage *ret_usages,
                       size_t max, size_t *ret_count)
{
    struct control control = {.kind = CONTROL_SCOPES,
                              .deadline_ns = UINT64_MAX,
                              .ret_scopes = ret_scopes,
                              .ret_usages = ret_usages,
                              .scopes_max = max};
    KV_TRY(kv_engine_ask(engine, &control));
    *ret_count = control.blocks;
    return KV_OK;
}

KV_RC kv_engine_scopes(struct kv_engine *engine, struct kv_id *ret_scopes, size_t max, size_t *ret_count)
{
    return kv_engine_usages(engine, ret_scopes, NULL, max, ret_count);
}

KV_RC kv_engine_assign(struct kv_engine *engine, const struct kv_id *scope, const struct kv_id *tenant)
{
    struct control control = {.kind = CONTROL_ASSIGN, .deadline_ns = UINT64_MAX, .scope = scope, .tenant = tenant};
    return kv_engine_ask(engine, &control);
}

KV_RC kv_engine_tenant_bytes(struct kv_engine *engine, const struct kv_id *tenant, uint64_t ret_bytes[KV_ENGINE_TIERS])
{
    struct control control = {.kind = CONTROL_TENANT, .deadline_ns = UINT64_MAX, .tenant = tenant};
    KV_TRY(kv_engine_ask(engine, &control));
    memcpy(ret_bytes, control.tenant_bytes, sizeof control.tenant_bytes);
    return KV_OK;
}

KV_RC kv_engine_close_pool(struct kv_engine *engine, struct kv_pool *pool, uint64_t deadline_ns)
{
    struct control control = {.kind = CONTROL_CLOSE_POOL, .deadline_ns = deadline_ns, .pool = pool};
    return kv_engine_ask(engine, &control);
}

KV_RC kv_engine_close_nvme(struct kv_engine *engine, bool closed)
{
    struct control control = {.kind = CONTROL_CLOSE_NVME, .deadline_ns = UINT64_MAX, .closed = closed};
    return kv_engine_ask(engine, &control);
}

KV_RC kv_engine_drain_nvme(struct kv_engine *engine, uint64_t deadline_ns, uint64_t *ret_blocks)
{
    struct control control = {.kind = CONTROL_DRAIN_NVME, .deadline_ns = deadline_ns};
    enum kv_err rc = kv_engine_ask(engine, &control);
    *ret_blocks = control.blocks;
    return rc;
}

KV_RC kv_engine_drain_dram(struct kv_engine *engine, uint64_t deadline_ns, uint64_t *ret_blocks)
{
    struct control control = {.kind = CONTROL_DRAIN, .deadline_ns = deadline_ns};
    enum kv_err rc = kv_engine_ask(engine, &control);
    if (ret_blocks != NULL) {
        *ret_blocks = control.blocks;
    }
    return rc;
}
