/* Lookup, offload and restore: columns of hashes and slots in, columns of results out, in the same order. */
#include "dataplane/base/mem.h"
#include "server/http/h_shared.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GENERATION_MAX INT64_C(9007199254740991) /* 2^53 - 1: what a number in JSON holds exactly */

static const char *result_name(enum kv_block_result result)
{
    static const char *const names[] = {
        [KV_BLOCK_PENDING] = "failed", /* an operation that ended leaves none pending */
        [KV_BLOCK_STORED] = "stored",       [KV_BLOCK_PRESENT] = "present", [KV_BLOCK_RESTORED] = "restored",
        [KV_BLOCK_RECOMPUTE] = "recompute", [KV_BLOCK_MISSING] = "missing", [KV_BLOCK_QUARANTINED] = "quarantined",
        [KV_BLOCK_ERASED] = "erased",       [KV_BLOCK_DENIED] = "denied",   [KV_BLOCK_STALE_PAGE] = "stale_page",
        [KV_BLOCK_BUSY] = "busy",           [KV_BLOCK_TIMEOUT] = "timeout", [KV_BLOCK_FAILED] = "failed",
    };
    return (size_t)result < sizeof names / sizeof names[0] ? names[result] : "failed";
}

static const char *const tier_names[] = {
    [KV_TIER_NONE] = "none", [KV_TIER_DRAM] = "dram", [KV_TIER_NVME] = "nvme", [KV_TIER_OBJECT] = "object"};
#define TIER_NAMES (sizeof tier_names / sizeof tier_names[0])

/* --- in ---------------------------------------------------------------------------------------------------------- */

/* One call's arrays, `count` each. */
struct columns {
    struct kv_json *body;
    uint32_t count;
    uint8_t (*hashes)[32];
    uint32_t *slots;
    uint64_t *generations; /* NULL where none came */
    enum kv_block_result *results;
    uint8_t *tiers;
};

static void columns_done(struct columns *columns)
{
    kv_json_freep(&columns->body);
    kv_free(columns->hashes);
    kv_free(columns->slots);
    kv_free(columns->generations);
    kv_free(columns->results);
    kv_free(columns->tiers);
}

static KV_RC columns_alloc(struct columns *columns, size_t count)
{
    columns->count = (uint32_t)count;
    columns->hashes = kv_alloc_array(count, sizeof *columns->hashes);
    columns->slots = kv_alloc_array(count, sizeof *columns->slots);
    columns->results = kv_alloc_array(count, sizeof *columns->results);
    columns->tiers = kv_alloc_array(count, sizeof *columns->tiers);
    return columns->hashes != NULL && columns->slots != NULL && columns->results != NULL && columns->tiers != NULL
               ? KV_OK
               : KV_E_NO_MEMORY;
}

static KV_RC read_hashes(struct kv_call *call, struct columns *columns)
{
    kv_value *array = kv_json_get(columns->body, "hashes");
    KV_TRY(columns_alloc(columns, kv_json_len(array)));
    for (uint32_t i = 0; i < columns->count; i++) {
        const char *text = kv_json_as_text(kv_json_at(array, i));
        if (text == NULL || kv_hex_decode(text, columns->hashes[i], sizeof columns->hashes[i]) != KV_OK) {
            char pointer[32];
            snprintf(pointer, sizeof pointer, "/hashes/%u", i);
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "must be 64 lower-case hex digits");
        }
    }
    return KV_OK;
}

static KV_RC read_slots(struct kv_call *call, struct columns *columns)
{
    kv_value *array = kv_json_get(columns->body, "slots");
    if (kv_json_len(array) != columns->count) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/slots", "must have as many items as hashes, %u",
                          columns->count);
    }
    for (uint32_t i = 0; i < columns->count; i++) {
        int64_t slot = 0;
        if (!kv_json_as_int(kv_json_at(array, i), &slot) || slot < 0 || slot > UINT32_MAX) {
            char pointer[32];
            snprintf(pointer, sizeof pointer, "/slots/%u", i);
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "must be a whole number, 0 to %u",
                              UINT32_MAX);
        }
        columns->slots[i] = (uint32_t)slot;
    }
    return KV_OK;
}

static KV_RC read_generations(struct kv_call *call, struct columns *columns)
{
    kv_value *array = kv_json_get(columns->body, "generations");
    if (kv_json_len(array) != columns->count) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/generations", "must have as many items as hashes, %u",
                          columns->count);
    }
    columns->generations = kv_alloc_array(columns->count, sizeof *columns->generations);
    if (columns->generations == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < columns->count; i++) {
        int64_t generation = 0;
        if (!kv_json_as_int(kv_json_at(array, i), &generation) || generation < 0 || generation > GENERATION_MAX) {
            char pointer[40];
            snprintf(pointer, sizeof pointer, "/generations/%u", i);
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, pointer, "must be a whole number, 0 to %lld",
                              (long long)GENERATION_MAX);
        }
        columns->generations[i] = (uint64_t)generation;
    }
    return KV_OK;
}

static int compare_slots(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Two blocks into one page: the engine would read the wrong one of them. */
static KV_RC check_slots_differ(struct kv_call *call, const struct columns *columns)
{
    uint32_t *sorted KV_CLEANUP(kv_freep) = kv_alloc_array(columns->count, sizeof *sorted);
    if (sorted == NULL) {
        return KV_E_NO_MEMORY;
    }
    memcpy(sorted, columns->slots, columns->count * sizeof *sorted);
    qsort(sorted, columns->count, sizeof *sorted, compare_slots);
    for (uint32_t i = 1; i < columns->count; i++) {
        if (sorted[i] == sorted[i - 1]) {
            return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/slots",
                              "slot %u is named twice; give each block a page of its own", sorted[i]);
        }
    }
    return KV_OK;
}

#define BLOCKS_FIELDS                                                                                               \
    KV_ID_FIELD("session_id"), KV_ID_FIELD("pool_id"), {"hashes", KV_ARRAY, true, 1, KV_MAX_BLOCKS_PER_CALL, NULL}, \
    {                                                                                                               \
        "shared_blocks", KV_INT, false, 0, KV_MAX_BLOCKS_PER_CALL, NULL                                             \
    }
#define TRANSFER_FIELDS                                                        \
    BLOCKS_FIELDS, {"slots", KV_ARRAY, true, 1, KV_MAX_BLOCKS_PER_CALL, NULL}, \
        {"generations", KV_ARRAY, false, 1, KV_MAX_BLOCKS_PER_CALL, NULL},     \
    {                                                                          \
        "deadline_ms", KV_INT, false, 1, KV_MAX_TRANSFER_MS, NULL              \
    }

static KV_RC read_blocks(struct kv_call *call, const struct kv_req *req, const struct kv_field *fields, size_t count,
                         struct columns *columns, struct kv_blocks_in *in)
{
    KV_TRY(kv_h_body(call, req, fields, count, &columns->body));
    KV_TRY(kv_json_id(columns->body, "", "session_id", "ses", &in->session, &call->info));
    KV_TRY(kv_json_id(columns->body, "", "pool_id", "poo", &in->pool, &call->info));
    KV_TRY(read_hashes(call, columns));
    in->count = columns->count;
    in->hashes = (const uint8_t(*)[32])columns->hashes;
    if (kv_json_get(columns->body, "slots") != NULL) {
        KV_TRY(read_slots(call, columns));
        in->slots = columns->slots;
    }
    if (kv_json_get(columns->body, "generations") != NULL) {
        KV_TRY(read_generations(call, columns));
        in->generations = columns->generations;
    }
    const char *wait = kv_json_text(columns->body, "wait");
    in->wait = wait != NULL && strcmp(wait, "durable") == 0 ? KV_WAIT_DURABLE : KV_WAIT_DRAM;
    in->deadline_ms = (uint64_t)kv_json_int(columns->body, "deadline_ms", 0);
    in->shared = (uint32_t)kv_json_int(columns->body, "shared_blocks", 0);
    return KV_OK;
}

/* --- out --------------------------------------------------------------------------------------------------------- */

static void write_results(struct kv_buf *out, const struct columns *columns)
{
    kv_out_array(out, "results");
    for (uint32_t i = 0; i < columns->count; i++) {
        kv_out_text(out, NULL, result_name(columns->results[i]));
    }
    kv_out_array_end(out);
    kv_out_array(out, "tiers");
    for (uint32_t i = 0; i < columns->count; i++) {
        kv_out_text(out, NULL, tier_names[columns->tiers[i] < TIER_NAMES ? columns->tiers[i] : KV_TIER_NONE]);
    }
    kv_out_array_end(out);
}

/* "dram+nvme" from a mask of 1 << kv_tier_id. */
static void write_mask(struct kv_buf *out, unsigned mask)
{
    char text[32] = "";
    size_t len = 0;
    for (unsigned tier = KV_TIER_DRAM; tier < TIER_NAMES; tier++) {
        if ((mask & (1u << tier)) != 0) {
            len += (size_t)snprintf(text + len, sizeof text - len, "%s%s", len == 0 ? "" : "+", tier_names[tier]);
        }
    }
    kv_out_text(out, NULL, len == 0 ? tier_names[KV_TIER_NONE] : text);
}

static void write_totals(struct kv_buf *out, const struct kv_blocks_out *totals)
{
    kv_out_int(out, "bytes", totals->bytes);
    kv_out_int(out, "duration_us", totals->duration_us);
}

/* --- the routes -------------------------------------------------------------------------------------------------- */

static KV_RC lookup(struct kv_call *call, struct kv_req *req, struct columns *columns)
{
    const struct kv_field fields[] = {BLOCKS_FIELDS};
    struct kv_blocks_in in = {0};
    struct kv_buf *out = &req->response.body;
    KV_TRY(read_blocks(call, req, KV_FIELDS(fields), columns, &in));
    struct kv_blocks_out found = {.results = columns->results, .tiers = columns->tiers};
    KV_TRY(kv_svc_lookup(call, &in, &found));
    kv_out_open(out);
    kv_out_int(out, "prefix_blocks", found.leading_blocks);
    kv_out_array(out, "tiers");
    for (uint32_t i = 0; i < columns->count; i++) {
        write_mask(out, columns->tiers[i]);
    }
    kv_out_array_end(out);
    kv_out_close(out);
    return KV_OK;
}

static KV_RC offload(struct kv_call *call, struct kv_req *req, struct columns *columns)
{
    const struct kv_field fields[] = {TRANSFER_FIELDS, {"wait", KV_TEXT, false, 1, 16, "|dram|durable|"}};
    struct kv_blocks_in in = {0};
    struct kv_buf *out = &req->response.body;
    KV_TRY(read_blocks(call, req, KV_FIELDS(fields), columns, &in));
    struct kv_blocks_out done = {.results = columns->results, .tiers = columns->tiers};
    KV_TRY(kv_svc_offload(call, &in, &done));
    kv_out_open(out);
    kv_out_id(out, "operation_id", "opr", &done.op);
    write_results(out, columns);
    kv_out_int(out, "stored", done.done_blocks - done.present_blocks);
    kv_out_int(out, "present", done.present_blocks);
    write_totals(out, &done);
    kv_out_close(out);
    return KV_OK;
}

static KV_RC restore(struct kv_call *call, struct kv_req *req, struct columns *columns)
{
    const struct kv_field fields[] = {TRANSFER_FIELDS};
    struct kv_blocks_in in = {0};
    struct kv_buf *out = &req->response.body;
    KV_TRY(read_blocks(call, req, KV_FIELDS(fields), columns, &in));
    KV_TRY(check_slots_differ(call, columns));
    struct kv_blocks_out done = {.results = columns->results, .tiers = columns->tiers};
    KV_TRY(kv_svc_restore(call, &in, &done));
    kv_out_open(out);
    kv_out_id(out, "operation_id", "opr", &done.op);
    write_results(out, columns);
    kv_out_int(out, "restored", done.done_blocks);
    kv_out_int(out, "contiguous_blocks", done.leading_blocks);
    write_totals(out, &done);
    kv_out_close(out);
    return KV_OK;
}

static KV_RC with_columns(struct kv_call *call, struct kv_req *req,
                          enum kv_err (*run)(struct kv_call *call, struct kv_req *req, struct columns *columns))
{
    struct columns columns = {0};
    enum kv_err rc = run(call, req, &columns);
    columns_done(&columns);
    return rc;
}

KV_RC kv_h_lookup(struct kv_call *call, struct kv_req *req)
{
    return with_columns(call, req, lookup);
}

KV_RC kv_h_offload(struct kv_call *call, struct kv_req *req)
{
    return with_columns(call, req, offload);
}

KV_RC kv_h_restore(struct kv_call *call, struct kv_req *req)
{
    return with_columns(call, req, restore);
}
