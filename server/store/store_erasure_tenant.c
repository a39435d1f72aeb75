/*
 * Erasures of whole tenants. Which sessions one means is said by two numbers, because slots are given out in order and
 * never again: rows of sessions are touched only afterwards, a few at a time. Must never mean a session that has an
 * erasure of its own.
 */
#include "server/store/pg_int.h"
#include "server/store/store_erasure.h"

#include <string.h>

/* The sessions of tenant $1 from slot $2 up to, not with, $3; those already settled name the erasure $4. */
#define MEANT                                                         \
    " FROM session WHERE tenant_id = $1 AND slot >= $2 AND slot < $3" \
    " AND (state = 'active' OR erasure_id = $4)"

static void arg_meant(struct kv_pg_args *args, const struct kv_store_revocation *what)
{
    kv_pg_arg_id(args, &what->tenant);
    kv_pg_arg_i32(args, what->first_slot);
    kv_pg_arg_i32(args, what->slot);
    kv_pg_arg_id(args, &what->erasure);
}

/* ---- the request ---- */

static KV_RC insert_row(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_insert_tenant",
        "INSERT INTO erasure (scope, id, tenant_id, slot, first_slot, directory_slot, tree_id, sessions, state, basis,"
        " reason_sha256, reference_sha256, requested_by, requested_role, revocation_seq, requested_at,"
        " blocked_hold_at, needs_approval_at)"
        " VALUES ('tenant', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"};
    enum kv_erasure_state state = erasure->state;
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &erasure->id);
    kv_pg_arg_id(&args, &erasure->tenant);
    kv_pg_arg_i32(&args, erasure->slot);
    kv_pg_arg_i32(&args, erasure->first_slot);
    kv_pg_arg_i32(&args, erasure->directory_slot);
    kv_pg_arg_id(&args, &erasure->tree);
    kv_pg_arg_u64(&args, erasure->sessions);
    kv_pg_arg_text(&args, kv_erasure_state_name(state));
    kv_pg_arg_text(&args, erasure->basis);
    kv_pg_arg_text_or_null(&args, erasure->reason_sha256);
    kv_pg_arg_text_or_null(&args, erasure->reference_sha256);
    kv_pg_arg_id_or_null(&args, &erasure->requested_by);
    kv_pg_arg_text(&args, erasure->requested_role);
    kv_pg_arg_i64(&args, erasure->revocation_seq);
    kv_pg_arg_time(&args, erasure->at_us[KV_ERASURE_REQUESTED]);
    kv_pg_arg_time_or_null(&args, state == KV_ERASURE_BLOCKED_HOLD ? erasure->at_us[state] : 0);
    kv_pg_arg_time_or_null(&args, state == KV_ERASURE_NEEDS_APPROVAL ? erasure->at_us[state] : 0);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC count_meant(struct kv_pg *pg, const struct kv_store_revocation *what, struct kv_errinfo *info,
                         uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"erasure_count_sessions", "SELECT count(*)" MEANT};
    struct kv_pg_args args = {0};
    arg_meant(&args, what);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

KV_RC kv_store_erasure_insert_tenant(struct kv_pg *pg, struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    struct kv_store_tenant tenant;
    KV_TRY(kv_store_tenant_lock(pg, &erasure->tenant, info, &tenant));
    if (tenant.state == KV_TENANT_ERASED) {
        return kv_fail(info, KV_E_STALE, "the tenant is erased already");
    }
    erasure->whole_tenant = true;
    erasure->slot = tenant.next_slot;
    erasure->first_slot = tenant.first_slot;
    erasure->directory_slot = tenant.directory_slot;
    erasure->tree = tenant.tree;
    const struct kv_store_revocation what = {
        .tenant = erasure->tenant, .erasure = erasure->id, .first_slot = erasure->first_slot, .slot = erasure->slot};
    KV_TRY(count_meant(pg, &what, info, &erasure->sessions));
    KV_TRY(insert_row(pg, erasure, info));
    return kv_store_tenant_renew_tree(pg, &tenant, &erasure->id, info);
}

/* ---- which sessions ---- */

KV_RC kv_store_erasure_sessions(struct kv_pg *pg, const struct kv_store_revocation *what, const struct kv_id *after,
                                size_t max, struct kv_errinfo *info, struct kv_id *ret_ids, size_t *ret_count)
{
    static const struct kv_pg_query query = {"erasure_sessions", "SELECT id" MEANT " AND id > $5 ORDER BY id LIMIT $6"};
    struct kv_pg_args args = {0};
    arg_meant(&args, what);
    kv_pg_arg_id(&args, after);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_ids[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_ids, ret_count, info);
}

KV_RC kv_store_erasure_set_sessions(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_set_sessions", "UPDATE erasure SET sessions = $2, sessions_root = $3 WHERE id = $1"
                                " AND scope = 'tenant' AND state NOT IN ('verified', 'certified', 'quarantined')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &erasure->id);
    kv_pg_arg_u64(&args, erasure->sessions);
    kv_pg_arg_raw(&args, erasure->sessions_root, sizeof erasure->sessions_root);
    return kv_pg_change_one(pg, &query, &args, info, "what was found for this erasure is frozen");
}

/* ---- afterwards ---- */

static KV_RC drop_tree(struct kv_pg *pg, const struct kv_id *erasure, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "erasure_drop_tree", "DELETE FROM ktree_node WHERE tree = (SELECT coalesce(tree_id, tenant_id) FROM erasure"
                             " WHERE id = $1 AND scope = 'tenant' AND state = 'certified')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, erasure);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC fill_what(struct kv_pg_row *row, void *ret)
{
    struct kv_store_revocation *what = ret;
    kv_pg_get_id(row, &what->erasure);
    kv_pg_get_id(row, &what->tenant);
    what->first_slot = kv_pg_get_u32(row);
    what->slot = kv_pg_get_u32(row);
    what->seq = kv_pg_get_i64(row);
    return KV_OK;
}

static KV_RC settle_some(struct kv_pg *pg, const struct kv_store_revocation *what, size_t max, struct kv_errinfo *info,
                         uint64_t *ret_count)
{
    static const struct kv_pg_query query = {
        "erasure_settle", "UPDATE session SET state = 'erased', revoked_seq = $5, erasure_id = $4, labels = '{}',"
                          " external_hmac = NULL, external_sealed = NULL, rev = rev + 1 WHERE id IN (SELECT id" MEANT
                          " AND state = 'active' LIMIT $6)"};
    struct kv_pg_args args = {0};
    arg_meant(&args, what);
    kv_pg_arg_i64(&args, what->seq);
    kv_pg_arg_u64(&args, max);
    return kv_pg_change(pg, &query, &args, info, ret_count);
}

KV_RC kv_store_erasure_settle(struct kv_pg *pg, size_t max, uint64_t now_us, struct kv_errinfo *info,
                              uint64_t *ret_count)
{
    static const struct kv_pg_query next = {
        "erasure_to_settle",
        "SELECT id, tenant_id, first_slot, slot, revocation_seq FROM erasure WHERE scope = 'tenant'"
        " AND settled_at IS NULL AND certified_at IS NOT NULL ORDER BY certified_at LIMIT 1"
        " FOR UPDATE SKIP LOCKED"};
    static const struct kv_pg_query done = {"erasure_settled", "UPDATE erasure SET settled_at = $2 WHERE id = $1"};
    struct kv_store_revocation what;
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {
        .query = &next, .args = &args, .write = true, .none = KV_E_MISSING, .none_text = "nothing to settle"};
    enum kv_err rc = kv_pg_fetch_one(pg, &one, fill_what, &what, info);
    *ret_count = 0;
    if (rc == KV_E_MISSING) {
        return KV_OK;
    }
    KV_TRY(rc);
    KV_TRY(settle_some(pg, &what, max, info, ret_count));
    if (*ret_count == max) {
        return KV_OK;
    }
    KV_TRY(drop_tree(pg, &what.erasure, info));
    struct kv_pg_args end = {0};
    kv_pg_arg_id(&end, &what.erasure);
    kv_pg_arg_time(&end, now_us);
    return kv_pg_change_one(pg, &done, &end, info, "the erasure is not there");
}
