/* See store_loss.h. Must never leave a session active whose key hung under the old root, nor certify one. */
#include "server/store/store_loss.h"

#include "server/store/pg_int.h"

/* Not those that went with all of their tenant's and are certified: their rows only do not say so yet. */
#define LOST                                                                                               \
    " WHERE state IN ('active', 'erasing') AND NOT EXISTS (SELECT FROM erasure e WHERE e.scope = 'tenant'" \
    " AND e.state = 'certified' AND e.tenant_id = session.tenant_id AND session.slot >= e.first_slot AND"  \
    " session.slot < e.slot AND session.state = 'active')"

KV_RC kv_store_loss_count(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_sessions)
{
    static const struct kv_pg_query query = {"loss_count", "SELECT count(*) FROM session" LOST};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_sessions, info);
}

static KV_RC fill_fence(struct kv_pg_row *row, void *ret)
{
    *(int64_t *)ret = kv_pg_get_i64(row);
    return KV_OK;
}

KV_RC kv_store_kroot_replace(struct kv_pg *pg, const struct kv_store_root_set *root, struct kv_errinfo *info,
                             int64_t *ret_fence)
{
    static const struct kv_pg_query query = {
        "kroot_replace",
        "INSERT INTO kroot (root_id, provider, blob, fence) VALUES ($1, $2, $3, 1) ON CONFLICT (one) DO UPDATE"
        " SET root_id = $1, provider = $2, blob = $3, fence = kroot.fence + 1, eraser = NULL, updated_at = now()"
        " RETURNING fence"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &root->root_id);
    kv_pg_arg_text(&args, root->provider);
    kv_pg_arg_raw(&args, root->blob.data, root->blob.len);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no root was written"};
    return kv_pg_fetch_one(pg, &one, fill_fence, ret_fence, info);
}

/* What was found of an erasure that did not come to its end stays; what it sampled does not. */
static KV_RC stop_erasures(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query erasures = {
        "loss_erasures",
        "UPDATE erasure SET state = 'quarantined', quarantined_at = $1, sample_headers = NULL WHERE state IN"
        " ('requested', 'fenced', 'staged', 'rekeyed', 'destroyed', 'purged', 'verified', 'blocked_hold',"
        " 'needs_approval')"};
    static const struct kv_pg_query begun = {
        "loss_batches_begun",
        "UPDATE erase_batch SET state = 'abandoned', old_top_row = NULL WHERE state IN ('staged', 'rekeyed')"};
    static const struct kv_pg_query destroyed = {
        "loss_batches_destroyed",
        "UPDATE erase_batch SET state = 'done', purged_at = coalesce(purged_at, $1), old_top_row = NULL"
        " WHERE state IN ('destroyed', 'purged')"};
    struct kv_pg_args at = {0}, none = {0};
    uint64_t rows = 0;
    kv_pg_arg_time(&at, now_us);
    KV_TRY(kv_pg_change(pg, &erasures, &at, info, &rows));
    KV_TRY(kv_pg_change(pg, &begun, &none, info, &rows));
    return kv_pg_change(pg, &destroyed, &at, info, &rows);
}

KV_RC kv_store_lose_everything(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, uint64_t *ret_sessions)
{
    static const struct kv_pg_query sessions = {
        "loss_sessions",
        "UPDATE session SET state = 'lost', external_hmac = NULL, external_sealed = NULL, labels = '{}',"
        " rev = rev + 1, updated_at = $1" LOST};
    static const struct kv_pg_query nodes = {"loss_nodes", "DELETE FROM ktree_node"};
    struct kv_pg_args at = {0}, none = {0};
    uint64_t rows = 0;
    kv_pg_arg_time(&at, now_us);
    KV_TRY(stop_erasures(pg, now_us, info));
    KV_TRY(kv_pg_change(pg, &nodes, &none, info, &rows));
    return kv_pg_change(pg, &sessions, &at, info, ret_sessions);
}
