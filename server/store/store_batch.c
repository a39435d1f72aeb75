/*
 * Batches: one replacement of the root, for up to KV_ERASE_BATCH erasures. What a crash finds in here says how to go
 * on.
 */
#include "server/store/pg_int.h"
#include "server/store/store_erasure.h"

static const char *const state_names[] = {"staged", "rekeyed", "destroyed", "purged", "done", "abandoned"};

const char *kv_batch_state_name(enum kv_batch_state state)
{
    return state_names[state];
}

#define SELECT_BATCH                                                                                      \
    "SELECT id, old_root, new_root, state, fence, provider, provider_detail, receipt_sha256 IS NOT NULL," \
    " receipt_sha256, created_at, destroyed_at, purged_at FROM erase_batch "

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_batch *batch = ret;
    kv_pg_get_id(row, &batch->id);
    kv_pg_get_id(row, &batch->old_root);
    kv_pg_get_id(row, &batch->new_root);
    batch->state = (enum kv_batch_state)kv_pg_get_word(row, state_names, KV_BATCH_ABANDONED + 1);
    batch->fence = kv_pg_get_i64(row);
    kv_pg_get_text(row, batch->provider, sizeof batch->provider);
    kv_pg_get_text(row, batch->provider_detail, sizeof batch->provider_detail);
    batch->has_receipt = kv_pg_get_bool(row);
    kv_pg_get_raw(row, batch->receipt_sha256, sizeof batch->receipt_sha256);
    batch->created_us = kv_pg_get_time(row);
    batch->destroyed_us = kv_pg_get_time(row);
    batch->purged_us = kv_pg_get_time(row);
    return KV_OK;
}

static KV_RC fill_bool(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_batch_insert(struct kv_pg *pg, const struct kv_store_batch *batch, struct kv_bytes old_top,
                            struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"batch_insert",
                                             "INSERT INTO erase_batch (id, old_root, new_root, fence, provider,"
                                             " provider_detail, old_top_row, created_at)"
                                             " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
                                             " ON CONFLICT ((true)) WHERE state IN ('staged', 'rekeyed') DO NOTHING"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &batch->id);
    kv_pg_arg_id(&args, &batch->old_root);
    kv_pg_arg_id(&args, &batch->new_root);
    kv_pg_arg_i64(&args, batch->fence);
    kv_pg_arg_text(&args, batch->provider);
    kv_pg_arg_text(&args, batch->provider_detail);
    kv_pg_arg_raw_or_null(&args, old_top.data, old_top.len);
    kv_pg_arg_time(&args, batch->created_us);
    return kv_pg_change_one(pg, &query, &args, info, "another batch is replacing the root");
}

KV_RC kv_store_batch_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                         struct kv_store_batch *ret_batch)
{
    static const struct kv_pg_query query = {"batch_get", SELECT_BATCH "WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "there is no such batch"};
    return kv_pg_fetch_one(pg, &one, fill, ret_batch, info);
}

KV_RC kv_store_batch_of_root(struct kv_pg *pg, const struct kv_id *old_root, struct kv_errinfo *info,
                             struct kv_store_batch *ret_batch)
{
    static const struct kv_pg_query query = {
        "batch_of_root", SELECT_BATCH "WHERE old_root = $1 AND state <> 'abandoned' ORDER BY created_at DESC LIMIT 1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, old_root);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "nothing replaced this root"};
    return kv_pg_fetch_one(pg, &one, fill, ret_batch, info);
}

struct history {
    uint64_t count, last_us;
};

static KV_RC fill_history(struct kv_pg_row *row, void *ret)
{
    struct history *history = ret;
    history->count = kv_pg_get_u64(row);
    history->last_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_root_history(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count, uint64_t *ret_last_us)
{
    static const struct kv_pg_query query = {"root_history", "SELECT count(*), max(destroyed_at) FROM erase_batch"
                                                             " WHERE destroyed_at IS NOT NULL"};
    struct kv_pg_args args = {0};
    struct history history = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    KV_TRY(kv_pg_fetch_one(pg, &one, fill_history, &history, info));
    *ret_count = history.count;
    *ret_last_us = history.last_us;
    return KV_OK;
}

KV_RC kv_store_batch_list_open(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_batch *ret_list,
                               size_t *ret_count)
{
    static const struct kv_pg_query query = {"batch_list_open",
                                             SELECT_BATCH "WHERE state IN ('staged', 'rekeyed', 'destroyed', 'purged')"
                                                          " ORDER BY created_at, id LIMIT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

KV_RC kv_store_root_known(struct kv_pg *pg, const struct kv_id *root, struct kv_errinfo *info, bool *ret_known)
{
    /* The first one has no batch of its own. What comes later is not looked at once something is true. */
    static const struct kv_pg_query query = {
        "root_known",
        "SELECT CASE WHEN EXISTS (SELECT FROM kroot WHERE root_id = $1) THEN true"
        " WHEN EXISTS (SELECT FROM erase_batch WHERE new_root = $1 AND state NOT IN ('staged', 'abandoned')) THEN true"
        " ELSE EXISTS (SELECT FROM erase_batch WHERE old_root = $1 AND state NOT IN ('staged', 'abandoned')) END"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, root);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_bool, ret_known, info);
}

static bool is_arrow(enum kv_batch_state from, enum kv_batch_state to)
{
    if (to == KV_BATCH_ABANDONED) {
        return from == KV_BATCH_STAGED;
    }
    return from < KV_BATCH_DONE && to == from + 1;
}

KV_RC kv_store_batch_advance(struct kv_pg *pg, const struct kv_id *id, enum kv_batch_state from, enum kv_batch_state to,
                             uint64_t at_us, const uint8_t *receipt_sha256, struct kv_errinfo *info)
{
    /* Once it is done the row of the old tree has served. */
    static const struct kv_pg_query query = {
        "batch_advance",
        "UPDATE erase_batch SET state = $3, destroyed_at = CASE WHEN $3 = 'destroyed' THEN $4 ELSE destroyed_at END,"
        " purged_at = CASE WHEN $3 = 'purged' THEN $4 ELSE purged_at END,"
        " receipt_sha256 = coalesce($5, receipt_sha256),"
        " old_top_row = CASE WHEN $3 IN ('done', 'abandoned') THEN NULL ELSE old_top_row END"
        " WHERE id = $1 AND state = $2"};
    if (!is_arrow(from, to) || (to == KV_BATCH_DESTROYED) != (receipt_sha256 != NULL)) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "a batch does not go from %s to %s like this", state_names[from],
                       state_names[to]);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_text(&args, state_names[from]);
    kv_pg_arg_text(&args, state_names[to]);
    kv_pg_arg_time(&args, at_us);
    kv_pg_arg_raw_or_null(&args, receipt_sha256, receipt_sha256 != NULL ? 32 : 0);
    return kv_pg_change_one(pg, &query, &args, info, "the batch is not in the state that was seen");
}

KV_RC kv_store_batch_set_old_top(struct kv_pg *pg, const struct kv_id *id, struct kv_bytes old_top,
                                 struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"batch_set_old_top", "UPDATE erase_batch SET old_top_row = $2"
                                                                  " WHERE id = $1 AND state = 'staged'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_raw_or_null(&args, old_top.data, old_top.len);
    return kv_pg_change_one(pg, &query, &args, info, "the batch is past its start");
}

KV_RC kv_store_batch_old_top(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                             struct kv_buf *ret_old_top)
{
    static const struct kv_pg_query query = {"batch_old_top", "SELECT old_top_row FROM erase_batch WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    return kv_pg_fetch_blob(pg, &query, &args, "the batch keeps no row of the old tree", info, ret_old_top);
}
